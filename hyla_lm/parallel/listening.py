"""Where process 0 listens: on the addresses that the coordinator's name has on this host alone."""

import errno
import ipaddress
import logging
import socket

from hyla_lm.errors import UserError

BACKLOG = 1024

log = logging.getLogger(__name__)
Address = tuple[socket.AddressFamily, str]


def own_addresses(host: str) -> list[Address]:
    """The addresses of this host that `host` names; none if it names another or none.

    A name that means this host only here, as /etc/hosts may give 127.0.1.1 to a machine's own name,
    counts as none, since the others find another address by it.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    named = dict.fromkeys((entry[0], str(entry[4][0])) for entry in found)
    own: list[Address] = [address for address in named if _is_own(address)]
    means_this_host = host == "localhost" or host in {address for _, address in own}
    if not means_this_host and all(ipaddress.ip_address(address).is_loopback for _, address in own):
        return []
    return own


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets on this host's addresses by that name; on all of its addresses if it has none."""
    own = own_addresses(host)
    if not own:
        log.info("%s names no address of this host alone: process 0 listens on all it has", host)
        own = [(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, "")]
    servers: list[socket.socket] = []
    try:
        for address in own:
            servers.append(_server(address, port))
    except OSError as error:
        for server in servers:
            server.close()
        raise UserError(
            f"process 0 cannot listen on port {port}, the one after the coordinator's "
            f"({error.strerror}): end what holds it or change JAX_COORDINATOR_ADDRESS."
        ) from error
    return servers


def _server(address: Address, port: int) -> socket.socket:
    family, host = address
    both = not host and family is socket.AF_INET6
    return socket.create_server((host, port), family=family, dualstack_ipv6=both, backlog=BACKLOG)


def _is_own(address: Address) -> bool:
    family, host = address
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
