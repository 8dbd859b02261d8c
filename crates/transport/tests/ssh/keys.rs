//! Authentication of both sides.

use std::fs;

use fleetwright_transport::{Hop, LinkError, Login, ReachError, Route, Transport as _, Trust};
use std::sync::Arc;

use crate::sshd::{Setup, folder, key, keygen, limits, route, user};
use crate::{HELPER, LONG, ask};

#[tokio::test]
async fn every_kind_of_key_is_let_in() {
    let sshd = Setup::new().start();
    let ssh = sshd.ssh(HELPER);
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let login = sshd.new_key(kind);
        let link = ssh.connect(route(sshd.hop_with(&login))).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    }
}

#[tokio::test]
async fn every_kind_of_host_key_can_be_pinned_and_the_pinned_one_is_asked_for() {
    let sshd = Setup::new().host_keys(&["rsa", "ecdsa", "ed25519"]).start();
    let ssh = sshd.ssh(HELPER);
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let hop = Hop { trust: Trust::Keys(vec![sshd.host_key(kind)]), ..sshd.hop() };
        let link = ssh.connect(route(hop)).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(link.host_key(), sshd.host_key(kind));
    }
}

#[tokio::test]
async fn what_is_seen_on_first_use_can_be_pinned() {
    let sshd = Setup::new().start();
    let ssh = sshd.ssh(HELPER);
    let first = Hop { trust: Trust::FirstUse, ..sshd.hop() };
    let seen = ssh.connect(route(first)).await.unwrap().host_key().to_owned();
    assert_eq!(seen, sshd.host_key("ed25519"));
    let second = Hop { trust: Trust::Keys(vec![seen]), ..sshd.hop() };
    assert!(ssh.connect(route(second)).await.is_ok());
}

#[tokio::test]
async fn a_host_that_shows_another_key_is_not_logged_in_to() {
    let sshd = Setup::new().start();
    let hop = sshd.hop();
    let ssh = sshd.ssh(HELPER);
    assert!(ssh.connect(route(hop.clone())).await.is_ok());
    let (port, before) = (sshd.port, sshd.host_key("ed25519"));
    drop(sshd);

    let anew = Setup::new().start_at(port, Arc::new(folder()));
    match ssh.connect(route(hop.clone())).await.err() {
        Some(ReachError::HostKeyChanged { found, known, address }) => {
            assert_eq!((found, known), (anew.host_key("ed25519"), 1));
            assert!(address.ends_with(&port.to_string()), "{address}");
            assert_ne!(before, anew.host_key("ed25519"));
        }
        other => panic!("{other:?}"),
    }
    // The user name was not sent to the host.
    assert!(!anew.log().contains("user"), "{}", anew.log());
    // A key of another type counts as another key, too.
    drop(anew);
    let other_type = Setup::new().host_keys(&["ecdsa"]).start_at(port, Arc::new(folder()));
    let error = ssh.connect(route(hop)).await.err().unwrap();
    assert!(
        matches!(&error, ReachError::HostKeyChanged { found, .. } if *found == other_type.host_key("ecdsa")),
        "{error}"
    );
}

#[tokio::test]
async fn a_key_that_is_not_let_in_says_what_to_do() {
    let sshd = Setup::new().start();
    let (stranger, _) = key(sshd.folder.path(), "ed25519");
    match sshd.ssh(HELPER).connect(route(sshd.hop_with(&stranger))).await.err() {
        Some(ReachError::LoginRefused(text)) => {
            assert!(text.contains("authorized_keys") && text.contains("SHA256:"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn certificates_of_an_authority_are_let_in() {
    let home = Arc::new(folder());
    let at = home.path().display().to_string();
    keygen(&["-q", "-t", "ed25519", "-N", "", "-f", &format!("{at}/ca")]);
    let sshd =
        Setup::new().configured(&format!("TrustedUserCAKeys {at}/ca.pub")).start_at(crate::sshd::free_port(), home);
    let ssh = sshd.ssh(HELPER);
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let (plain, public) = key(sshd.folder.path(), kind);
        let signed = |principal: &str, validity: &str| {
            let file = format!("{at}/{kind}.pub");
            fs::write(&file, &public).unwrap();
            keygen(&["-q", "-s", &format!("{at}/ca"), "-I", "us", "-n", principal, "-V", validity, &file]);
            let certificate = fs::read_to_string(format!("{at}/{kind}-cert.pub")).unwrap();
            Login { certificate: Some(certificate.into()), ..plain.clone() }
        };
        let good = ssh.connect(route(sshd.hop_with(&signed(&user(), "always:forever")))).await;
        assert!(good.is_ok(), "{kind}: {}", good.err().unwrap());
        // Without the certificate, with one for another user, or an expired one, the login fails.
        for (login, why) in [
            (plain.clone(), "authorized_keys"),
            (signed("somebody", "always:forever"), "TrustedUserCAKeys"),
            (signed(&user(), "20200101:20200102"), "valid now"),
        ] {
            match ssh.connect(route(sshd.hop_with(&login))).await.err() {
                Some(ReachError::LoginRefused(text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn logins_that_cannot_be_used_say_so_without_a_host() {
    let sshd = Setup::new().start();
    let ssh = sshd.ssh(HELPER);
    let at = sshd.folder.path().display().to_string();
    keygen(&["-q", "-t", "ed25519", "-N", "a passphrase", "-f", &format!("{at}/locked")]);
    let locked = Login { key: fs::read_to_string(format!("{at}/locked")).unwrap().into(), certificate: None };
    let (good, _) = key(sshd.folder.path(), "ed25519");
    let other = key(sshd.folder.path(), "ed25519").1;
    fs::write(format!("{at}/x.pub"), other).unwrap();
    keygen(&["-q", "-t", "ed25519", "-N", "", "-f", &format!("{at}/ca2")]);
    keygen(&["-q", "-s", &format!("{at}/ca2"), "-I", "us", "-n", "root", &format!("{at}/x.pub")]);
    let foreign = fs::read_to_string(format!("{at}/x-cert.pub")).unwrap();
    for (login, why) in [
        (locked, "passphrase"),
        (Login { key: "nothing".into(), certificate: None }, "private key"),
        (Login { certificate: Some("nothing".into()), ..good.clone() }, "-cert.pub"),
        (Login { certificate: Some(foreign.into()), ..good.clone() }, "does not match"),
    ] {
        match ssh.connect(route(sshd.hop_with(&login))).await.err() {
            Some(ReachError::InvalidLogin(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn hosts_behind_jump_hosts_are_reached_and_each_hop_is_pinned() {
    let (first, second, host) = (Setup::new().start(), Setup::new().start(), Setup::new().start());
    let ssh = host.ssh(HELPER);
    let way =
        Route { machine: "m1".into(), host: host.hop(), jumps: vec![first.hop(), second.hop()], limits: limits() };
    let link = ssh.connect(Arc::new(way.clone())).await.unwrap();
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    assert_eq!(link.host_key(), host.host_key("ed25519"));

    // A man in the middle cannot pass for another host.
    let mut forged = way.clone();
    forged.jumps[1].trust = Trust::Keys(vec![first.host_key("ed25519")]);
    match ssh.connect(Arc::new(forged)).await.err() {
        Some(ReachError::HostKeyChanged { address, .. }) => {
            assert!(address.ends_with(&second.port.to_string()), "{address}")
        }
        other => panic!("{other:?}"),
    }

    // The loss of a jump host ends the link.
    first.cut();
    let (_, answer) = ask(&*link, "plain", LONG).await;
    assert!(matches!(answer, Err(LinkError::Lost(_))), "{answer:?}");
    crate::until("the link is closed", || !link.open()).await;
}

#[tokio::test]
async fn a_jump_host_that_does_not_forward_is_named() {
    let (jump, host) = (Setup::new().configured("AllowTcpForwarding no").start(), Setup::new().start());
    let way = Route { machine: "m1".into(), host: host.hop(), jumps: vec![jump.hop()], limits: limits() };
    match host.ssh(HELPER).connect(Arc::new(way)).await.err() {
        Some(ReachError::Unreachable(text)) => {
            assert!(text.contains("AllowTcpForwarding") && text.contains(&jump.port.to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
