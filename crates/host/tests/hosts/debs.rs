//! Debian packages on a real host: systemd, apt and dpkg, reached by SSH.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use fleetwright_lab::hosts::{Host, Misbehaviour, Network, PackageServer, Template};
use fleetwright_wire::*;

use crate::lab::{Reached, package, source};

/// Builds the packages: `demo` with a service, a settings file and a library that it needs, in a good, a better and a bad version, and one
/// that can be stopped during its installation.
const MAKE: &str = r#"
set -e
make() { # name version depends postinst
  root=$(mktemp -d)
  mkdir -p "$root/DEBIAN" "$root/etc" "$root/usr/bin" "$root/lib/systemd/system"
  printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: Lab <lab@example.com>\nDescription: for tests\n' "$1" "$2" >"$root/DEBIAN/control"
  if [ -n "$3" ]; then echo "Depends: $3" >>"$root/DEBIAN/control"; fi
  printf '#!/bin/sh\necho %s\nexec sleep infinity\n' "$2" >"$root/usr/bin/$1"
  echo "version=$2" >"$root/etc/$1.conf"
  echo "/etc/$1.conf" >"$root/DEBIAN/conffiles"
  printf '[Service]\nExecStart=/usr/bin/%s\n[Install]\nWantedBy=multi-user.target\n' "$1" >"$root/lib/systemd/system/$1.service"
  printf '#!/bin/sh\nset -e\n%s\nsystemctl daemon-reload\ndeb-systemd-helper enable %s.service\ndeb-systemd-invoke restart %s.service\n' "$4" "$1" "$1" >"$root/DEBIAN/postinst"
  printf '#!/bin/sh\nset -e\nif [ "$1" = remove ]; then deb-systemd-invoke stop %s.service; fi\n' "$1" >"$root/DEBIAN/prerm"
  printf '#!/bin/sh\nset -e\nif [ "$1" = purge ]; then deb-systemd-helper purge %s.service; fi\nif [ "$1" = purge ]; then deb-systemd-helper unmask %s.service; fi\nsystemctl daemon-reload\n' "$1" "$1" >"$root/DEBIAN/postrm"
  chmod 755 "$root" "$root"/usr/bin/* "$root"/DEBIAN/p*
  dpkg-deb --root-owner-group --build "$root" "$1_$2_all.deb" >/dev/null
  rm -rf "$root"
}
make demo-lib 1.0 "" ":"
make demo 1.0 demo-lib ":"
make demo 1:2.0 demo-lib ":"
make demo 1:3.0 demo-lib "echo broken on purpose >&2; exit 1"
make slow 1.0 "" "while [ -e /root/slow ]; do sleep 0.2; done"
dpkg-scanpackages --multiversion . 2>/dev/null >Packages
"#;

struct Ground {
    server: PackageServer,
    folder: tempfile::TempDir,
    host: Reached,
    machine: Host,
    _network: Network,
}

impl Ground {
    async fn start() -> Result<Self> {
        let network = Network::start().await?;
        let machine = Host::start(&network, &Template::debian().await?, "debs").await?;
        let server = PackageServer::start(network.address())?;
        let folder = tempfile::tempdir()?;
        let made = Command::new("bash").args(["-c", MAKE]).current_dir(&folder).status()?;
        ensure!(made.success(), "the packages could not be made");
        for entry in std::fs::read_dir(folder.path())? {
            let entry = entry?;
            server
                .publish(&format!("repo/{}", entry.file_name().to_string_lossy().replace(':', "%3a")), &entry.path())?;
            server.publish(&format!("repo/{}", entry.file_name().to_string_lossy()), &entry.path())?;
        }
        let host = Reached::at(&network, machine.address())?;
        host.feed("cat >/etc/apt/sources.list", format!("deb [trusted=yes] {} ./\n", server.url("repo")).as_bytes())?;
        Ok(Self { server, folder, host, machine, _network: network })
    }

    fn file(&self, name: &str, version: &str) -> PathBuf {
        self.folder.path().join(format!("{name}_{version}_all.deb"))
    }

    fn source(&self, file: &Path) -> Result<Source> {
        source(&self.server, &format!("files/{}", file.file_name().unwrap_or_default().to_string_lossy()), file)
    }

    /// `demo`, from files or from the repository, with its unit and a declared settings file.
    fn demo(&self, version: &str, from_files: bool) -> Result<Package> {
        let sources = match from_files {
            true => vec![self.source(&self.file("demo", version))?, self.source(&self.file("demo-lib", "1.0"))?],
            false => Vec::new(),
        };
        let deb = Deb { packages: BTreeMap::from([("demo".to_owned(), version.to_owned())]), sources, hold: true };
        let mut package = package("demo", version, Method::Deb(deb));
        package.files = vec![File {
            path: "/etc/demo.conf".to_owned(),
            mode: 0o640,
            owner: "root".to_owned(),
            group: "root".to_owned(),
            content: Content::Text("declared\n".to_owned()),
            secret: false,
            once: false,
        }];
        package.units =
            vec![Unit { name: "demo.service".to_owned(), enabled: Some(true), running: Some(true), ..Unit::default() }];
        Ok(package)
    }

    /// The version and the selection of a package in dpkg.
    fn dpkg(&self, name: &str) -> Result<String> {
        let command = format!("dpkg-query -W -f '${{Version}} ${{Status}}' {name} 2>/dev/null || echo none");
        Ok(self.host.run(&command)?.trim().to_owned())
    }

    /// All packages in dpkg.
    fn all(&self) -> Result<String> {
        self.host.run("dpkg-query -W -f '${Package} ${Version} ${Status}${Conffiles}\n'; dpkg --get-selections; apt-mark showauto")
    }

    /// The state by which hosts are compared: everything but logs, caches and the lists of the repositories.
    async fn tree(&self) -> Result<fleetwright_lab::hosts::Tree> {
        Ok(self.machine.tree().await?.without(&[
            "/var/log",
            "/var/cache",
            "/var/lib/apt",
            "/var/lib/systemd",
            // Its content is compared by dpkg's own output.
            "/var/lib/dpkg/status",
            "/var/lib/dpkg/status-old",
            "/var/lib/dpkg/lock",
            "/var/lib/dpkg/lock-frontend",
            "/var/lib/dpkg/triggers",
            "/root/.bash_history",
        ]))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_changed_repaired_and_removed_on_hosts() -> Result<()> {
    let ground = Ground::start().await?;
    let host = &ground.host;
    let (before, known) = (ground.tree().await?, ground.all()?);

    // The package starts no service by itself: without a declared unit the service stays down.
    let mut quiet = ground.demo("1.0", true)?;
    quiet.units.clear();
    host.done("quiet", Step::Install(quiet.clone()))?;
    assert_eq!(host.run("systemctl show -P ActiveState -P ActiveEnterTimestamp demo.service")?.trim(), "inactive");
    assert_eq!(ground.dpkg("demo")?, "1.0 hold ok installed");
    assert_eq!(ground.dpkg("demo-lib")?, "1.0 install ok installed");
    host.run("test ! -e /usr/sbin/policy-rc.d")?;

    let first = ground.demo("1.0", true)?;
    host.done("first", Step::Install(first.clone()))?;
    assert_eq!(host.told(&first)?, [""; 0]);
    assert_eq!(host.run("systemctl is-active demo.service")?, "active\n");
    let started = host.run("systemctl show -P ActiveEnterTimestampMonotonic demo.service")?;

    // A bulk observation has the same results as single ones; also beside a unit that systemd cannot be asked about.
    let with_unit = |component: &str, unit: &str| {
        let mut package = package(component, "1", Method::Config);
        package.units = vec![Unit { name: unit.to_owned(), running: Some(true), ..Unit::default() }];
        package.health.checks = vec![Check::Unit(unit.to_owned())];
        package
    };
    let mut watched = vec![
        with_unit("there", "ssh.service"),
        first.clone(),
        with_unit("absent", "nowhere.service"),
        with_unit("down", "rescue.target"),
        ground.demo("1:2.0", false)?,
    ];
    for beside in [None, Some(with_unit("beyond", "no unit"))] {
        watched.extend(beside);
        let together = host.see_all(&watched)?;
        assert_eq!(together.len(), watched.len());
        for (package, seen) in watched.iter().zip(together) {
            assert_eq!(host.see(package)?, seen);
        }
    }

    // An upgrade from the repository: the declared settings stay, the service is restarted by us.
    let second = ground.demo("1:2.0", false)?;
    host.done("second", Step::Install(second.clone()))?;
    assert_eq!(ground.dpkg("demo")?, "1:2.0 hold ok installed");
    assert_eq!(host.told(&second)?, [""; 0]);
    assert_eq!(host.run("cat /etc/demo.conf")?, "declared\n");
    assert_ne!(host.run("systemctl show -P ActiveEnterTimestampMonotonic demo.service")?, started);

    // Rollback and upgrade without a network.
    ground.server.misbehave("", Some(Misbehaviour::Fail(503)));
    host.done("back", Step::Back { component: "demo".to_owned(), to: first.digest() })?;
    assert_eq!(ground.dpkg("demo")?, "1.0 hold ok installed");
    ground.server.misbehave("", None);
    host.done("forth", Step::Install(second.clone()))?;

    // A bad version fails in its own script, and the host rolls back to the one that worked.
    let message = host.fails("bad", Step::Install(ground.demo("1:3.0", false)?))?;
    assert!(message.contains("script failed"), "{message}");
    assert!(message.contains("error processing package demo"), "{message}");
    host.done("good", Step::Back { component: "demo".to_owned(), to: second.digest() })?;
    assert_eq!(ground.dpkg("demo")?, "1:2.0 hold ok installed");
    assert_eq!(host.told(&second)?, [""; 0]);

    // Somebody removes the package by hand.
    host.run("apt-get purge -y --allow-change-held-packages demo")?;
    let told = host.told(&second)?;
    assert!(told.contains(&"package demo: absent / 1:2.0".to_owned()), "{told:?}");
    host.done("removed-by-hand", Step::Repair(second.clone()))?;
    assert_eq!(host.told(&second)?, [""; 0]);
    host.run(
        "apt-mark unhold demo && apt-get install -y --allow-downgrades -o Dpkg::Options::=--force-confold demo=1.0",
    )?;
    let told = host.told(&second)?;
    assert!(told.contains(&"package demo: 1.0 / 1:2.0".to_owned()), "{told:?}");
    assert!(told.contains(&"package demo hold: not held / held".to_owned()), "{told:?}");
    let repaired = host.done("other-version-by-hand", Step::Repair(second.clone()))?;
    for part in ["package demo", "was 1.0", "1:2.0"] {
        assert!(repaired.message.contains(part), "{}", repaired.message);
    }
    assert_eq!(ground.dpkg("demo")?, "1:2.0 hold ok installed");

    // The error about an unavailable version says what to do.
    let message = host.fails("nowhere", Step::Install(ground.demo("9", false)?))?;
    assert!(message.contains("correct the version"), "{message}");

    host.done("remove", Step::Remove { component: "demo".to_owned() })?;
    host.clean()?;
    assert_eq!(ground.all()?, known);
    assert_eq!(before.changes(&ground.tree().await?), [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_there_before_is_put_back_and_interruptions_are_made_good_on_hosts() -> Result<()> {
    let ground = Ground::start().await?;
    let host = &ground.host;
    host.run("apt-get update && apt-get install -y demo=1.0")?;
    let before = ground.tree().await?;
    let known = ground.all()?;

    let second = ground.demo("1:2.0", true)?;
    host.done("second", Step::Install(second.clone()))?;
    assert_eq!(host.told(&second)?, [""; 0]);

    // The helper, apt and dpkg are killed during another component's installation.
    host.run("touch /root/slow")?;
    let slow =
        Deb { packages: BTreeMap::from([("slow".to_owned(), "1.0".to_owned())]), sources: Vec::new(), hold: true };
    let slow = package("slow", "1.0", Method::Deb(slow));
    let killed = std::thread::scope(|scope| -> Result<()> {
        let step = scope.spawn(|| host.apply("slow", Step::Install(slow.clone())));
        let wait = "timeout 60 sh -c 'until pgrep -f [s]low.postinst >/dev/null; do sleep 0.1; done'";
        host.run(wait)?;
        host.run("pkill -KILL fleetwright-hos; pkill -KILL apt-get; pkill -KILL dpkg; pkill -KILL -f [s]low.postinst; rm -f /root/slow; true")?;
        assert!(step.join().unwrap().is_err(), "the helper was killed");
        Ok(())
    });
    killed?;
    match host.ask(&Request::Recall { id: "slow".to_owned() })? {
        Answer::Recalled(Some(record)) => assert_eq!(record.outcome, Outcome::Interrupted),
        other => panic!("{other:?}"),
    }
    let told = host.told(&second)?;
    assert!(told.iter().any(|it| it.starts_with("file /usr/sbin/policy-rc.d: left by")), "{told:?}");
    host.done("slow-again", Step::Install(slow.clone()))?;
    assert_eq!(ground.dpkg("slow")?, "1.0 hold ok installed");
    assert_eq!(host.told(&second)?, [""; 0]);

    // Another program holds dpkg's lock for a while.
    let hold = r#"use Fcntl; open F, ">", "/var/lib/dpkg/lock-frontend"; my $l = pack("ssx4qqix4", F_WRLCK, 0, 0, 0, 0); fcntl(F, F_SETLK, $l) or die; open L, ">", "/root/locked"; close L; sleep 8;"#;
    host.feed("cat >/root/lock.pl", hold.as_bytes())?;
    host.run("systemd-run --quiet perl /root/lock.pl && timeout 20 sh -c 'until [ -e /root/locked ]; do sleep 0.1; done' && rm /root/locked /root/lock.pl")?;
    host.done("locked", Step::Remove { component: "slow".to_owned() })?;

    host.done("remove", Step::Remove { component: "demo".to_owned() })?;
    host.clean()?;
    assert_eq!(ground.all()?, known);
    let changes = before.changes(&ground.tree().await?);
    assert_eq!(changes, [""; 0]);
    Ok(())
}
