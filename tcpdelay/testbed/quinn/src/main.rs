//! One end of a QUIC connection of the testbed, with the library quinn.
//!
//! The sender is the client and writes the messages of a file at their times. The receiver is the server. Both ends
//! read the same file, so the data carries no lengths. Each end reports its state in lines on standard output, takes
//! the start and the stop of the measurement in lines on standard input, and leaves the times of its messages in a
//! file.

mod messages;

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use messages::{part_sizes, Arguments, Messages, HEADER_SIZE};
use quinn::congestion::{CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use quinn::{Connection, Endpoint, IdleTimeout, TransportConfig, VarInt};
use quinn_proto::QlogConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, verify_tls13_signature, CryptoProvider};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

type Failure = Box<dyn Error + Send + Sync>;

const PROTOCOL: &[u8] = b"tcpdelay";
/// Time of a message that has not been read.
const NOT_READ: i64 = -1;
/// UDP payload that quinn's path MTU discovery finds on a path of Ethernet. The probes of the discovery would be lost
/// like data, so it is switched off.
const PACKET_SIZE: u16 = 1452;
/// Streams of a sender that are open at the same time; quinn allocates each of them.
const STREAMS: u32 = 10_000;
/// For buffers that never limit the sender.
const UNLIMITED: u64 = 1 << 40;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Err(error) = runtime.block_on(run()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Failure> {
    let arguments = Arguments::parse()?;
    let messages = Arc::new(Messages::read(&arguments)?);
    let times = if arguments.sender {
        send(&arguments, messages).await?
    } else {
        receive(&arguments, messages).await?
    };
    let content: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
    Ok(std::fs::write(&arguments.times, content)?)
}

/// Returns the time on the monotonic clock, which all processes of a machine share [ns].
fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns the lines of standard input.
fn lines() -> UnboundedReceiver<String> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            if line.map_or(true, |line| sender.send(line).is_err()) {
                break;
            }
        }
    });
    receiver
}

fn transport(arguments: &Arguments) -> Result<Arc<TransportConfig>, Failure> {
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(PACKET_SIZE)
        .mtu_discovery_config(None)
        // netem would delay and drop several packets as one.
        .enable_segmentation_offload(false)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::MAX)))
        .max_concurrent_uni_streams(STREAMS.into())
        .stream_receive_window(VarInt::MAX)
        .receive_window(VarInt::MAX)
        .send_window(UNLIMITED)
        .datagram_receive_buffer_size(Some(UNLIMITED as usize))
        .datagram_send_buffer_size(UNLIMITED as usize);
    if arguments.congestion_control == "reno" {
        transport.congestion_controller_factory(Arc::new(NewRenoConfig::default()));
    } else {
        transport.congestion_controller_factory(Arc::new(CubicConfig::default()));
    }
    if let Some(file) = &arguments.qlog {
        let mut qlog = QlogConfig::default();
        qlog.writer(Box::new(File::create(file)?));
        transport.qlog_stream(qlog.into_stream());
    }
    Ok(Arc::new(transport))
}

/// Connects to the receiver, and writes the messages at their times. Returns the times of the writes.
async fn send(arguments: &Arguments, messages: Arc<Messages>) -> Result<Vec<i64>, Failure> {
    let provider = Arc::new(ring::default_provider());
    let mut security = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        .with_no_client_auth();
    security.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut client = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(security)?));
    client.transport_config(transport(arguments)?);
    let endpoint = Endpoint::client("0.0.0.0:0".parse()?)?;
    let connection = endpoint.connect_with(client, arguments.address, "receiver")?.await?;
    println!("ready");
    let mut input = lines();
    let start: i64 = input.recv().await.ok_or("the session has ended")?.trim().parse()?;
    let written = Arc::new(Mutex::new(Vec::with_capacity(messages.len())));
    let writing = tokio::spawn(write(connection.clone(), messages, start, arguments.is_datagram(), written.clone()));
    input.recv().await;
    if writing.is_finished() {
        writing.await??;
    } else {
        writing.abort();
    }
    let times = written.lock().unwrap().clone();
    hang_up(arguments, &endpoint, &connection, times).await
}

/// Writes each message at its time. The library takes all data at once, as no window or buffer limits it.
async fn write(
    connection: Connection,
    messages: Arc<Messages>,
    start: i64,
    datagrams: bool,
    written: Arc<Mutex<Vec<i64>>>,
) -> Result<(), Failure> {
    let timer = Timer::new()?;
    let zeros = vec![0; messages.largest()];
    let mut stream = None;
    for (number, message) in messages.iter().enumerate() {
        timer.wait(start + message.time).await?;
        written.lock().unwrap().push(now());
        if datagrams {
            send_datagrams(&connection, number, message.size)?;
            continue;
        }
        if message.begins_stream {
            stream = Some(connection.open_uni().await?);
        }
        let stream = stream.as_mut().ok_or("no stream")?;
        stream.write_all(&zeros[..message.size]).await?;
        // The end of the stream travels with its last message.
        if message.ends_stream {
            stream.finish()?;
        }
    }
    Ok(())
}

fn send_datagrams(connection: &Connection, number: usize, size: usize) -> Result<(), Failure> {
    let largest = connection.max_datagram_size().ok_or("no datagrams")?;
    let sizes = part_sizes(size, largest);
    for size in &sizes {
        let mut payload = vec![0; *size];
        payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
        payload[4..HEADER_SIZE].copy_from_slice(&(sizes.len() as u32).to_be_bytes());
        connection.send_datagram(payload.into())?;
    }
    Ok(())
}

async fn hang_up(
    arguments: &Arguments,
    endpoint: &Endpoint,
    connection: &Connection,
    times: Vec<i64>,
) -> Result<Vec<i64>, Failure> {
    if let Some(file) = &arguments.statistics {
        std::fs::write(file, format!("{:#?}\n", connection.stats()))?;
    }
    connection.close(0u32.into(), b"");
    let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    Ok(times)
}

/// The times at which messages were read.
struct ReadLog {
    times: Vec<i64>,
    left: usize,
}

impl ReadLog {
    fn read(&mut self, number: usize) {
        self.times[number] = now();
        self.left -= 1;
        if self.left == 0 {
            println!("complete");
        }
    }
}

/// Accepts one connection, and reads its messages until the session says stop. Returns the times of the reads.
async fn receive(arguments: &Arguments, messages: Arc<Messages>) -> Result<Vec<i64>, Failure> {
    // No certificate is checked: the path has no attacker.
    let own = rcgen::generate_simple_self_signed(vec!["receiver".into()])?;
    let key = PrivatePkcs8KeyDer::from(own.key_pair.serialize_der());
    let mut security = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.into()], key.into())?;
    security.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(security)?));
    server.transport_config(transport(arguments)?);
    let endpoint = Endpoint::server(server, arguments.address)?;
    println!("listening");
    let connection = endpoint.accept().await.ok_or("no connection")?.await?;
    println!("ready");
    let log = Arc::new(Mutex::new(ReadLog { times: vec![NOT_READ; messages.len()], left: messages.len() }));
    if arguments.is_datagram() {
        tokio::spawn(receive_datagrams(connection.clone(), log.clone(), messages.len()));
    } else {
        tokio::spawn(receive_streams(connection.clone(), log.clone(), messages));
    }
    lines().recv().await;
    let times = log.lock().unwrap().times.clone();
    hang_up(arguments, &endpoint, &connection, times).await
}

/// Reads all streams. The sender opens them in order, and the library hands them over in that order.
async fn receive_streams(connection: Connection, log: Arc<Mutex<ReadLog>>, messages: Arc<Messages>) {
    let mut first = 0;
    while first < messages.len() {
        let Ok(mut stream) = connection.accept_uni().await else { return };
        let (log, messages) = (log.clone(), messages.clone());
        let after = messages.stream_end(first);
        tokio::spawn({
            let messages = messages.clone();
            async move {
                let (mut number, mut received, mut needed) = (first, 0, messages.size(first));
                while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
                    received += chunk.bytes.len();
                    while number < after && received >= needed {
                        log.lock().unwrap().read(number);
                        number += 1;
                        needed += if number < after { messages.size(number) } else { 0 };
                    }
                }
            }
        });
        first = after;
    }
}

/// Counts the parts of each message; a message is complete when all its parts have arrived.
async fn receive_datagrams(connection: Connection, log: Arc<Mutex<ReadLog>>, messages: usize) {
    let mut arrived = vec![0; messages];
    while let Ok(payload) = connection.read_datagram().await {
        let field = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let (number, parts) = (field(0) as usize, field(4));
        arrived[number] += 1;
        if arrived[number] == parts {
            log.lock().unwrap().read(number);
        }
    }
}

/// Waits until exact times. A timer of tokio is up to a millisecond late.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        unsafe { Ok(Self(AsyncFd::register(OwnedFd::from_raw_fd(descriptor))?)) }
    }

    /// Returns at a time on the monotonic clock [ns].
    async fn wait(&self, moment: i64) -> io::Result<()> {
        let mut setting: libc::itimerspec = unsafe { std::mem::zeroed() };
        setting.it_value = libc::timespec { tv_sec: moment / 1_000_000_000, tv_nsec: moment % 1_000_000_000 };
        let descriptor = self.0.as_raw_fd();
        if unsafe { libc::timerfd_settime(descriptor, libc::TFD_TIMER_ABSTIME, &setting, std::ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            let mut ready = self.0.readable().await?;
            let mut expirations = 0u64;
            if unsafe { libc::read(descriptor, (&raw mut expirations).cast(), 8) } == 8 {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// Takes any certificate.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
