// One flow of constant rate over TCP in ns-3: prints its processor time and the delays from write to in-order read.
//
// Run by `benchmarks/ns3_flow.py`. Arguments: packets, packet size [bytes], interval [s], round-trip time [s], loss.

#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "ns3/packet-sink-helper.h"
#include "ns3/core-module.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/tcp-socket-factory.h"
#include "ns3/network-module.h"
#include "ns3/error-model.h"
#include "ns3/point-to-point-helper.h"

using namespace ns3;

static const Time START = Seconds(1);

struct Flow {
    uint32_t packets, size;
    Time interval;
    Ptr<Socket> socket;
    std::vector<double> delays;  // From the write of each packet to the read of its last byte [s]
    uint64_t read = 0;

    void Write(uint32_t number) {
        socket->Send(Create<Packet>(size));
        if (number + 1 < packets) Simulator::Schedule(interval, &Flow::Write, this, number + 1);
    }

    void Read(Ptr<const Packet> packet, const Address&) {
        read += packet->GetSize();
        while (delays.size() < read / size) {
            Time written = START + interval * static_cast<int64_t>(delays.size());
            delays.push_back((Simulator::Now() - written).GetSeconds());
        }
        if (delays.size() == packets) Simulator::Stop();
    }
};

int main(int argc, char** argv) {
    if (argc != 6) {
        std::cerr << "usage: ns3_flow PACKETS SIZE INTERVAL RTT LOSS\n";
        return 2;
    }
    Flow flow{static_cast<uint32_t>(std::stoul(argv[1])), static_cast<uint32_t>(std::stoul(argv[2])),
              Seconds(std::stod(argv[3])), nullptr, {}, 0};
    const double rtt = std::stod(argv[4]), loss = std::stod(argv[5]);
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpCubic"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(rtt + 0.2)));

    NodeContainer nodes;
    nodes.Create(2);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    link.SetChannelAttribute("Delay", TimeValue(Seconds(rtt / 2)));
    NetDeviceContainer devices = link.Install(nodes);
    Ptr<RateErrorModel> losses = CreateObject<RateErrorModel>();
    losses->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    losses->SetRate(loss);
    devices.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(losses));
    InternetStackHelper().Install(nodes);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);

    PacketSinkHelper sinks("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 9));
    ApplicationContainer sink = sinks.Install(nodes.Get(1));
    sink.Get(0)->TraceConnectWithoutContext("Rx", MakeCallback(&Flow::Read, &flow));
    flow.socket = Socket::CreateSocket(nodes.Get(0), TcpSocketFactory::GetTypeId());
    flow.socket->Bind();
    // Not before the simulation runs: the devices have no queues yet.
    Simulator::Schedule(START / 2, [&] { flow.socket->Connect(InetSocketAddress(interfaces.GetAddress(1), 9)); });
    Simulator::Schedule(START, &Flow::Write, &flow, 0u);

    const std::clock_t begin = std::clock();
    Simulator::Run();
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::sort(flow.delays.begin(), flow.delays.end());
    double sum = 0;
    for (double delay : flow.delays) sum += delay;
    const size_t count = flow.delays.size();
    std::cout << "{\"packets\": " << count << ", \"seconds\": " << seconds << ", \"mean\": " << sum / count
              << ", \"p95\": " << flow.delays[count * 95 / 100] << "}\n";
}
