# Only unix, internet and route sockets can be made, and none of them can change the network.
import fcntl, socket, struct

STREAM, DGRAM, RAW, SEQPACKET, PACKET = 1, 2, 3, 5, 10
for family in range(0, 64):
    if family in (1, 2, 10, 16):
        continue
    for kind in (STREAM, DGRAM, RAW, SEQPACKET):
        refused(f"family {family} type {kind}", call(41, family, kind, 0), errno.EAFNOSUPPORT)
for protocol in range(1, 40):
    refused(f"netlink {protocol}", call(41, 16, RAW, protocol), errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
for family in (2, 10):
    for protocol in range(0, 256):
        refused(f"raw {family} {protocol}", call(41, family, RAW, protocol), errno.EPERM, errno.EPROTONOSUPPORT)
    for protocol in (132, 136, 33, 262, 255):
        for kind in (STREAM, DGRAM, SEQPACKET):
            refused(f"protocol {protocol}", call(41, family, kind, protocol), errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
# An old alias that the kernel turns into a packet socket.
refused("packet alias", call(41, 2, PACKET, socket.htons(3)), errno.EPERM, errno.EPROTONOSUPPORT)
refused("packet alias with no protocol", call(41, 2, PACKET, 0), errno.EPERM)
for family in (2, 16, 17, 40):
    refused(f"pair {family}", call(53, family, STREAM, 0, ctypes.create_string_buffer(8)), errno.EAFNOSUPPORT, errno.EOPNOTSUPP)

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flags = struct.pack("16sH14x", b"lo", 0)
attempt("take loopback down", lambda: fcntl.ioctl(udp, 0x8914, flags), errno.EPERM)
attempt("set an address", lambda: fcntl.ioctl(udp, 0x8916, struct.pack("16sHHI8x", b"lo", 2, 0, 0)), errno.EPERM)
attempt("make a bridge", lambda: fcntl.ioctl(udp, 0x89A0, b"evil\0"), errno.EPERM, errno.ENOTTY, errno.ENOPKG, errno.ENOSYS)
attempt("transparent", lambda: udp.setsockopt(socket.SOL_IP, 19, 1), errno.EPERM)
attempt("mark", lambda: udp.setsockopt(socket.SOL_SOCKET, 36, 1), errno.EPERM)
attempt("firewall", lambda: udp.setsockopt(socket.SOL_IP, 64, bytes(96)), errno.EPERM, errno.ENOPROTOOPT)
attempt("firewall v6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).setsockopt(41, 64, bytes(96)),
        errno.EPERM, errno.ENOPROTOOPT)

route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
route.bind((0, 0))
for what, kind, body in [("new link", 16, struct.pack("BxHiII", 0, 0, 0, 0, 0)), ("delete loopback", 17, struct.pack("BxHiII", 0, 0, 1, 0, 0)),
                         ("new route", 24, bytes(12)), ("new address", 20, struct.pack("BBBBi", 2, 8, 0, 0, 1))]:
    route.send(struct.pack("IHHII", 16 + len(body), kind, 5 | 0x600, 1, 0) + body)
    answer = route.recv(4096)
    refused(what, -struct.unpack("i", answer[16:20])[0], errno.EPERM)
interfaces = [n for _, n in socket.if_nameindex()]
check("only interfaces of the sandbox", "lo" in interfaces and len(interfaces) <= 2, str(interfaces))
finish()
