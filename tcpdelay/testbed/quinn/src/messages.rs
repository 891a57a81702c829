//! The messages of a flow, and the command line that describes them.

use std::net::SocketAddr;

use crate::Failure;

/// Size of a message in the file: time [ns] and size [bytes] of 8 bytes each, and kind.
const ROW_SIZE: usize = 17;
/// Size of the head of a datagram: the message's number, and in how many datagrams it is sent.
pub const HEADER_SIZE: usize = 8;

/// The options of the program, each `-name=value`.
pub struct Arguments {
    pub sender: bool,
    pub address: SocketAddr,
    pub messages: String,
    pub times: String,
    pub delivery: String,
    pub group: usize,
    /// Kind of message that begins a group; -1: every `group` messages.
    pub key_kind: i64,
    pub congestion_control: String,
    pub qlog: Option<String>,
    pub statistics: Option<String>,
}

impl Arguments {
    pub fn parse() -> Result<Self, Failure> {
        let given: Vec<String> = std::env::args().skip(1).collect();
        let option = |name: &str| {
            let prefix = format!("-{name}=");
            given.iter().find_map(|each| each.strip_prefix(&prefix).map(String::from))
        };
        let needed = |name: &str| option(name).ok_or(format!("-{name} is missing"));
        Ok(Self {
            sender: given.iter().any(|each| each == "-sender"),
            address: needed("address")?.parse()?,
            messages: needed("messages")?,
            times: needed("times")?,
            delivery: needed("delivery")?,
            group: needed("group")?.parse()?,
            key_kind: needed("key-kind")?.parse()?,
            congestion_control: needed("congestion-control")?,
            qlog: option("qlog"),
            statistics: option("statistics"),
        })
    }

    pub fn is_datagram(&self) -> bool {
        self.delivery == "datagram"
    }
}

pub struct Message {
    /// Time since the start of writing [ns].
    pub time: i64,
    /// Size [bytes].
    pub size: usize,
    pub begins_stream: bool,
    pub ends_stream: bool,
}

pub struct Messages(Vec<Message>);

impl Messages {
    /// Returns the messages in a file. The only stream of the delivery "stream" never ends.
    pub fn read(arguments: &Arguments) -> Result<Self, Failure> {
        let content = std::fs::read(&arguments.messages)?;
        let mut messages: Vec<Message> = Vec::with_capacity(content.len() / ROW_SIZE);
        for (number, row) in content.chunks_exact(ROW_SIZE).enumerate() {
            let begins_group = match arguments.key_kind {
                -1 => number % arguments.group == 0,
                kind => i64::from(row[16]) == kind,
            };
            let begins_stream = number == 0
                || match arguments.delivery.as_str() {
                    "stream_per_message" => true,
                    "stream_per_group" => begins_group,
                    _ => false,
                };
            if begins_stream && number > 0 {
                messages[number - 1].ends_stream = true;
            }
            messages.push(Message {
                time: i64::from_le_bytes(row[..8].try_into()?),
                size: u64::from_le_bytes(row[8..16].try_into()?) as usize,
                begins_stream,
                ends_stream: false,
            });
        }
        if let Some(last) = messages.last_mut() {
            last.ends_stream = arguments.delivery != "stream";
        }
        Ok(Self(messages))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Message> {
        self.0.iter()
    }

    pub fn size(&self, number: usize) -> usize {
        self.0[number].size
    }

    pub fn largest(&self) -> usize {
        self.iter().map(|message| message.size).max().unwrap_or(0)
    }

    /// Returns the number after the last message on the stream that begins with message `first`.
    pub fn stream_end(&self, first: usize) -> usize {
        (first + 1..self.len()).find(|&number| self.0[number].begins_stream).unwrap_or(self.len())
    }
}

/// Splits a message into the least number of parts that fit; they differ by at most one byte, and have room for a head.
pub fn part_sizes(size: usize, largest: usize) -> Vec<usize> {
    let size = size.max(HEADER_SIZE);
    let parts = size.div_ceil(largest);
    (0..parts).map(|part| (size / parts).max(HEADER_SIZE) + usize::from(part < size % parts)).collect()
}
