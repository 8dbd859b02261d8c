//! IP addresses and networks.

use crate::value::{Eval, Val, fail, no_overload};
use std::net::{IpAddr, Ipv6Addr};

fn mapped(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// An address without a zone that is not an IPv4 address in IPv6 clothes.
pub(crate) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    if let Some((address, _)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        )
    })?;
    if mapped(&ip) {
        return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
    }
    Ok(ip)
}

/// What Go says of a text that is no address.
fn why_not(text: &str) -> String {
    if text.find(['.', ':']).is_none_or(|i| text.as_bytes()[i] != b'.') {
        return "unable to parse IP".into();
    }
    let (mut fields, mut digits, mut value) = (0, 0, 0_u32);
    for (i, c) in text.char_indices() {
        match c.to_digit(10) {
            Some(_) if digits == 1 && value == 0 => return "IPv4 field has octet with leading zero".into(),
            Some(d) => {
                value = value * 10 + d;
                digits += 1;
                if value > 255 {
                    return "IPv4 field has value >255".into();
                }
            }
            None if c == '.' => {
                if digits == 0 || i + 1 == text.len() {
                    return format!("IPv4 field must have at least one digit (at {:?})", &text[i..]);
                }
                if fields == 3 {
                    return "IPv4 address too long".into();
                }
                (fields, digits, value) = (fields + 1, 0, 0);
            }
            None => return format!("unexpected character (at {:?})", &text[i..]),
        }
    }
    "IPv4 address too short".into()
}

pub(crate) fn parse_cidr(text: &str) -> Result<(IpAddr, u8), String> {
    let error = |why: &str| {
        format!("network address parse error during conversion from string: netip.ParsePrefix({text:?}): {why}")
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| error("no '/'"))?;
    let ip: IpAddr = address.parse().map_err(|_| error(&format!("ParseAddr({address:?}): {}", why_not(address))))?;
    let plain =
        !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits.len() == 1 || !bits.starts_with('0'));
    let bits: u8 =
        bits.parse().ok().filter(|_| plain).ok_or_else(|| error(&format!("bad bits after slash: {bits:?}")))?;
    if bits > width(&ip) {
        return Err(error(&format!("prefix length out of range: {bits}")));
    }
    if mapped(&ip) {
        return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
    }
    Ok((ip, bits))
}

fn width(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn bits_of(ip: &IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u32::from(*v4).into(),
        IpAddr::V6(v6) => u128::from(*v6),
    }
}

fn prefix(ip: &IpAddr, bits: u8) -> u128 {
    let drop = u32::from(width(ip) - bits.min(width(ip)));
    bits_of(ip).checked_shr(drop).unwrap_or(0)
}

fn contains(net: &IpAddr, bits: u8, ip: &IpAddr) -> bool {
    net.is_ipv4() == ip.is_ipv4() && prefix(net, bits) == prefix(ip, bits)
}

fn masked(ip: &IpAddr, bits: u8) -> IpAddr {
    let drop = u32::from(width(ip) - bits);
    let value = prefix(ip, bits).checked_shl(drop).unwrap_or(0);
    match ip {
        IpAddr::V4(_) => IpAddr::V4((value as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(value.into()),
    }
}

fn link_local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn link_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn global_unicast(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local_unicast(ip)
}

pub(crate) fn call<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, args) {
        ("ip", [Val::Str(s)]) => parse_ip(s).map(Val::Ip).or_else(fail),
        ("isIP", [Val::Str(s)]) => Ok(Val::Bool(parse_ip(s).is_ok())),
        ("ip.isCanonical", [Val::Str(s)]) => parse_ip(s).map(|ip| Val::Bool(ip.to_string() == **s)).or_else(fail),
        ("ip", [Val::Cidr(ip, _)]) => Ok(Val::Ip(*ip)),
        ("family", [Val::Ip(ip)]) => Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 })),
        ("isUnspecified", [Val::Ip(ip)]) => Ok(Val::Bool(ip.is_unspecified())),
        ("isLoopback", [Val::Ip(ip)]) => Ok(Val::Bool(ip.is_loopback())),
        ("isLinkLocalMulticast", [Val::Ip(ip)]) => Ok(Val::Bool(link_local_multicast(ip))),
        ("isLinkLocalUnicast", [Val::Ip(ip)]) => Ok(Val::Bool(link_local_unicast(ip))),
        ("isGlobalUnicast", [Val::Ip(ip)]) => Ok(Val::Bool(global_unicast(ip))),
        ("cidr", [Val::Str(s)]) => match parse_cidr(s) {
            Ok((ip, bits)) => Ok(Val::Cidr(ip, bits)),
            Err(why) => fail(format!("network address parse error during conversion from string: {why}")),
        },
        ("isCIDR", [Val::Str(s)]) => Ok(Val::Bool(parse_cidr(s).is_ok())),
        ("containsIP", [Val::Cidr(net, bits), Val::Ip(ip)]) => Ok(Val::Bool(contains(net, *bits, ip))),
        ("containsIP", [net, s @ Val::Str(_)]) => {
            let ip = call("ip", std::slice::from_ref(s))?;
            call(func, &[net.clone(), ip])
        }
        ("containsCIDR", [Val::Cidr(net, bits), Val::Cidr(ip, inner)]) => {
            Ok(Val::Bool(bits <= inner && contains(net, *bits, ip)))
        }
        ("containsCIDR", [net, s @ Val::Str(_)]) => {
            let inner = call("cidr", std::slice::from_ref(s))?;
            call(func, &[net.clone(), inner])
        }
        ("prefixLength", [Val::Cidr(_, bits)]) => Ok(Val::Int((*bits).into())),
        ("masked", [Val::Cidr(ip, bits)]) => Ok(Val::Cidr(masked(ip, *bits), *bits)),
        _ => no_overload(),
    }
}
