//! Addresses of pods, nodes and services. They are of the loopback network, so that any process can listen on them without a device or a route.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The address range of pods, nodes and services, in blocks of 4096.
const PODS: AddressRange = AddressRange { first: Ipv4Addr::new(127, 64, 0, 0), bits: 11, block: 20 };
/// The address range of the cluster IPs of API servers.
const SERVICES: AddressRange = AddressRange { first: Ipv4Addr::new(127, 96, 0, 0), bits: 11, block: 18 };

/// The process that listens on this port of a block's first address owns the block. The port is outside of the range from which Linux takes ports
/// for connections, and no component uses it.
const CLAIM: u16 = 64_640;

/// A part of the loopback network that is allocated in blocks. Processes that run at the same time (tests, most of all) must not use each
/// other's addresses, so that a process claims a block before it uses it.
#[derive(Clone, Copy)]
struct AddressRange {
    first: Ipv4Addr,
    bits: u32,
    block: u32,
}

/// A block that this process owns while the value exists.
struct AddressBlock {
    first: Ipv4Addr,
    _claim: TcpListener,
}

impl AddressRange {
    fn claim(self, before: usize) -> Option<AddressBlock> {
        let blocks = 1_u32 << (self.block - self.bits);
        let size = 1_u32 << (32 - self.block);
        // Where a process starts to search: most processes find a free block at once.
        let start =
            std::process::id().wrapping_mul(0x9E37_79B1).wrapping_add(u32::try_from(before).unwrap_or_default());
        (0..blocks).find_map(|step| {
            let number = start.wrapping_add(step) % blocks;
            let first = Ipv4Addr::from(u32::from(self.first) + number * size);
            let claim = TcpListener::bind(SocketAddrV4::new(first, CLAIM)).ok()?;
            Some(AddressBlock { first, _claim: claim })
        })
    }
}

static POOL: Mutex<AddressPool> =
    Mutex::new(AddressPool { blocks: Vec::new(), networks: Vec::new(), next: 0, free: VecDeque::new() });

struct AddressPool {
    blocks: Vec<AddressBlock>,
    networks: Vec<AddressBlock>,
    next: u32,
    /// Freed addresses, the oldest first: an address should not be reused while a client still knows its last owner.
    free: VecDeque<Ipv4Addr>,
}

/// The number of freed addresses that stay unused before the oldest is reused.
const QUARANTINE: usize = 512;

fn pool() -> MutexGuard<'static, AddressPool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address that is unique in this process; freed when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Address(Arc<LeasedAddress>);

#[derive(Debug)]
struct LeasedAddress(Ipv4Addr);

impl Drop for LeasedAddress {
    fn drop(&mut self) {
        pool().free.push_back(self.0);
    }
}

impl Address {
    /// Allocates an address; none if other processes have all of them.
    pub(super) fn take() -> Option<Self> {
        let mut pool = pool();
        if pool.free.len() > QUARANTINE
            && let Some(free) = pool.free.pop_front()
        {
            return Some(Self(Arc::new(LeasedAddress(free))));
        }
        let size = 1_u32 << (32 - PODS.block);
        if pool.blocks.is_empty() || pool.next == size {
            let before = pool.blocks.len();
            match PODS.claim(before) {
                Some(block) => pool.blocks.push(block),
                // An address that was freed just now is better than none.
                None => return pool.free.pop_front().map(|free| Self(Arc::new(LeasedAddress(free)))),
            }
            pool.next = 1;
        }
        let first = u32::from(pool.blocks.last()?.first);
        let address = Ipv4Addr::from(first + pool.next);
        pool.next += 1;
        Some(Self(Arc::new(LeasedAddress(address))))
    }

    pub(super) fn ip(&self) -> Ipv4Addr {
        self.0.0
    }
}

/// A network for the cluster IPs of a simulated meta cluster (`service_cidr` of an embedded API server): one on which this process can listen
/// and that
/// no other process has. The process owns it until it ends.
pub fn service_network() -> Option<String> {
    let mut pool = pool();
    let before = pool.networks.len();
    let block = SERVICES.claim(before)?;
    let text = format!("{}/{}", block.first, SERVICES.block);
    pool.networks.push(block);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_can_be_listened_on() {
        let taken: Vec<Address> = (0..100).map(|_| Address::take().unwrap()).collect();
        let different: std::collections::HashSet<Ipv4Addr> = taken.iter().map(Address::ip).collect();
        assert_eq!(different.len(), taken.len());
        for address in &taken {
            assert!(address.ip().octets()[0] == 127 && TcpListener::bind((address.ip(), 6443)).is_ok(), "{address:?}");
        }
    }

    #[test]
    fn networks_of_services_differ() {
        let (one, two) = (service_network().unwrap(), service_network().unwrap());
        assert_ne!(one, two);
        assert!(one.starts_with("127.") && one.ends_with("/18"), "{one}");
    }
}
