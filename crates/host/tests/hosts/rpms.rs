//! RPM packages on a real host: Debian has rpm and dnf, and a host with them counts as one with RPM packages.

use std::collections::BTreeMap;

use anyhow::Result;
use fleetwright_lab::hosts::{Host, Network, PackageServer, Repository, Template};
use fleetwright_wire::*;

use crate::lab::{Reached, package};

/// Builds the packages on the host itself.
const MAKE: &str = r#"
set -e
mkdir -p /srv/rpms && cd /srv
make() { # name version requires
  {
    printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: for tests\nLicense: none\nBuildArch: noarch\n' "$1" "$2"
    if [ -n "$3" ]; then echo "Requires: $3"; fi
    printf '%%description\nFor tests.\n%%install\nmkdir -p %%{buildroot}/usr/bin\necho "echo %s" >%%{buildroot}/usr/bin/%s\n%%files\n%%attr(755,root,root) /usr/bin/%s\n' "$2" "$1" "$1"
  } >"$1.spec"
  rpmbuild -bb --define "_topdir /srv/top" --define "_rpmdir /srv/rpms" --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' "$1.spec" >/dev/null 2>&1
}
make demo-lib 1.0 ""
make demo 1.0 demo-lib
make demo 2.0 demo-lib
make other 1.0 demo-lib
rm -rf top ./*.spec
createrepo_c -q rpms
# Debian's dnf has a plugin on that none of the others has.
printf '[main]\nenabled=0\n' >/etc/dnf/plugins/local.conf
mkdir -p /etc/yum.repos.d
printf '[lab]\nname=lab\nbaseurl=file:///srv/rpms\ngpgcheck=0\n' >/etc/yum.repos.d/lab.repo
printf '[main]\ngpgcheck=True\nclean_requirements_on_remove=True\n' >/etc/dnf/dnf.conf
dnf -q makecache
"#;

fn demo(version: &str) -> Package {
    let packages = BTreeMap::from([("demo".to_owned(), format!("{version}-1"))]);
    package("demo", version, Method::Rpm(Rpm { packages, sources: Vec::new(), hold: true }))
}

#[tokio::test(flavor = "multi_thread")]
async fn rpm_packages_are_installed_changed_held_and_taken_away_on_hosts() -> Result<()> {
    let network = Network::start().await?;
    let template = Template::debian().await?;
    let machine = Host::start(&network, &template, "rpms").await?;
    let server = PackageServer::start(network.address())?;
    let tools = Repository::with(&template, &["rpm", "dnf", "dnf-plugins-core", "createrepo-c"]).await?;
    let host = Reached::at(&network, machine.address())?;
    host.feed("cat >/etc/apt/sources.list", tools.serve(&server)?.as_bytes())?;
    host.run("apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends rpm dnf dnf-plugins-core createrepo-c")?;
    host.feed("sh", MAKE.as_bytes())?;
    let rpms = || host.run("rpm -q demo demo-lib other | sort");

    // With the plugin that locks versions, and without it.
    for plugin in [true, false] {
        let lock = if plugin { "/etc/dnf/plugins/versionlock.list" } else { "/etc/dnf/dnf.conf" };
        if !plugin {
            host.run("sed -i s/enabled.*/enabled=0/ /etc/dnf/plugins/versionlock.conf")?;
        }
        let id = |name: &str| format!("{name}-{plugin}");
        let settings = host.run(&format!("sha256sum {lock}"))?;
        let (one, two) = (demo("1.0"), demo("2.0"));
        host.done(&id("one"), Step::Install(one.clone()))?;
        assert_eq!(rpms()?, "demo-1.0-1.noarch\ndemo-lib-1.0-1.noarch\npackage other is not installed\n");
        assert_eq!(host.told(&one)?, [""; 0]);

        // The package is held: no other program upgrades it.
        host.run("dnf -y upgrade")?;
        assert!(rpms()?.contains("demo-1.0-1"), "{}", rpms()?);
        host.done(&id("two"), Step::Install(two.clone()))?;
        assert!(rpms()?.contains("demo-2.0-1"), "{}", rpms()?);

        // A rollback, without a repository.
        host.run("mv /etc/yum.repos.d/lab.repo /root/")?;
        host.done(&id("back"), Step::Back { component: "demo".to_owned(), to: one.digest() })?;
        host.run("mv /root/lab.repo /etc/yum.repos.d/")?;
        assert!(rpms()?.contains("demo-1.0-1"), "{}", rpms()?);

        // Somebody removes the package by hand.
        host.run("rpm -e --nodeps demo")?;
        assert_eq!(host.told(&one)?, ["package demo: absent / 1.0-1"]);
        host.done(&id("removed"), Step::Repair(one.clone()))?;
        host.run("rpm -U /srv/rpms/demo-2.0-1.noarch.rpm")?;
        assert_eq!(host.told(&one)?, ["package demo: 2.0-1 / 1.0-1"]);
        host.done(&id("other"), Step::Repair(one.clone()))?;
        // As an interrupted transaction leaves it.
        host.run("rpm -i --force /srv/rpms/demo-2.0-1.noarch.rpm")?;
        assert_eq!(host.told(&one)?, ["package demo: 1.0-1 and 2.0-1 / 1.0-1"]);
        host.done(&id("both"), Step::Repair(one.clone()))?;
        assert_eq!(host.told(&one)?, [""; 0]);
        host.run(&format!("sed -i /demo/d {lock}"))?;
        assert_eq!(host.told(&one)?, ["package demo hold: not held / held"]);
        host.done(&id("lock"), Step::Repair(one.clone()))?;

        let missing = host.fails(&id("nowhere"), Step::Install(demo("9")))?;
        assert!(missing.contains("correct the version"), "{missing}");

        // A package that a person installed since needs the library: it stays.
        if plugin {
            host.run("dnf -y install other")?;
        }
        host.done(&id("remove"), Step::Remove { component: "demo".to_owned() })?;
        if plugin {
            assert_eq!(rpms()?, "demo-lib-1.0-1.noarch\nother-1.0-1.noarch\npackage demo is not installed\n");
            host.run("dnf -y remove other demo-lib")?;
        }
        assert_eq!(rpms()?.matches("is not installed").count(), 3, "{}", rpms()?);
        assert_eq!(host.run(&format!("sha256sum {lock}"))?, settings);
    }
    host.clean()
}

#[tokio::test(flavor = "multi_thread")]
async fn rpm_files_are_installed_without_dnf_on_hosts() -> Result<()> {
    let network = Network::start().await?;
    let template = Template::debian().await?;
    let machine = Host::start(&network, &template, "rpm-alone").await?;
    let server = PackageServer::start(network.address())?;
    let tools = Repository::with(&template, &["rpm", "dnf", "dnf-plugins-core", "createrepo-c"]).await?;
    let host = Reached::at(&network, machine.address())?;
    host.feed("cat >/etc/apt/sources.list", tools.serve(&server)?.as_bytes())?;
    host.run("apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends rpm")?;
    let make = MAKE.split("createrepo_c").next().unwrap_or_default();
    host.feed("sh", make.as_bytes())?;
    let file = |name: &str| -> Result<Source> {
        use base64::Engine as _;
        let text = host.run(&format!("base64 -w0 /srv/rpms/{name}"))?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim())?;
        Ok(Source { urls: Vec::new(), sha256: fleetwright_host::text::sha256(&bytes), inline: Some(Bytes(bytes)) })
    };
    let demo = |version: &str| -> Result<Package> {
        let mut package = demo(version);
        if let Method::Rpm(rpm) = &mut package.method {
            rpm.sources = vec![file(&format!("demo-{version}-1.noarch.rpm"))?, file("demo-lib-1.0-1.noarch.rpm")?];
        }
        Ok(package)
    };
    host.done("two", Step::Install(demo("2.0")?))?;
    host.done("one", Step::Install(demo("1.0")?))?;
    assert_eq!(host.run("rpm -q demo demo-lib")?, "demo-1.0-1.noarch\ndemo-lib-1.0-1.noarch\n");
    assert_eq!(host.told(&demo("1.0")?)?, [""; 0]);
    host.done("remove", Step::Remove { component: "demo".to_owned() })?;
    assert_eq!(host.run("rpm -qa")?, "");
    host.clean()
}
