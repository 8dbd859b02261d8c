//! The certificates and keys of a cluster: which there are, what they say, and when they are replaced.

use std::net::IpAddr;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ExtensionPlacement};
use jiff::{SignedDuration, Timestamp};

use super::Names;

/// An authority of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    /// Of everything that speaks to the API server, and of the API server.
    Cluster,
    /// Of etcd, its members and its clients.
    Etcd,
    /// Of who speaks for others to extension API servers.
    FrontProxy,
    /// Of kubelets' serving certificates. Only API servers trust it, and only for kubelets: a node that gets one for a wrong name is nobody's API server.
    Kubelet,
}

impl Authority {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Etcd, Self::FrontProxy, Self::Kubelet];

    /// The Secret that holds it: `tls.crt` and `tls.key` of the one that signs, `ca.crt` of all that are trusted.
    pub const fn secret(self) -> &'static str {
        match self {
            Self::Cluster => "ca",
            Self::Etcd => "etcd-ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Kubelet => "kubelet-ca",
        }
    }
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUse {
    /// A server's.
    Server,
    /// A client's.
    Client,
    /// Of a member of etcd, which is both to the others.
    Both,
}

/// A certificate that a cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// The Secret that holds it.
    pub secret: &'static str,
    /// Who signs it.
    pub authority: Authority,
    /// Its user.
    pub common_name: String,
    /// Its groups.
    pub organizations: Vec<String>,
    /// What it is for.
    pub usage: CertificateUse,
    /// The DNS names of a server.
    pub dns_names: Vec<String>,
    /// The addresses of a server.
    pub ips: Vec<IpAddr>,
    /// The Secret holds a kubeconfig with it instead of the pair.
    pub kubeconfig: bool,
}

/// The Secret with the keys of service-account tokens: `sa.key` and `sa.pub`.
pub const SERVICE_ACCOUNT: &str = "service-account";
/// The Secret with the operator's own certificate for the API servers.
pub const OPERATOR: &str = "operator-client";
/// The Secret with the operator's own certificate for etcd.
pub const OPERATOR_ETCD: &str = "operator-etcd-client";

/// The certificates of a cluster. `endpoints` are the addresses and names that lead to its API servers besides those inside the meta cluster.
pub fn required_certificates(names: &Names, spec: &ClusterSpec, endpoints: &[String]) -> Vec<CertificateSpec> {
    let client = |secret, authority, user: &str, groups: &[&str]| CertificateSpec {
        secret,
        authority,
        common_name: user.to_owned(),
        organizations: groups.iter().map(|&group| group.to_owned()).collect(),
        usage: CertificateUse::Client,
        dns_names: Vec::new(),
        ips: Vec::new(),
        kubeconfig: false,
    };
    let mut all = vec![
        apiserver(names, spec, endpoints),
        client("apiserver-kubelet-client", Authority::Cluster, "kube-apiserver-kubelet-client", &["system:masters"]),
        client("front-proxy-client", Authority::FrontProxy, "front-proxy-client", &[]),
        client(OPERATOR, Authority::Cluster, "fleetwright:cluster-operator", &["system:masters"]),
        CertificateSpec {
            kubeconfig: true,
            ..client("controller-manager-kubeconfig", Authority::Cluster, "system:kube-controller-manager", &[])
        },
        CertificateSpec {
            kubeconfig: true,
            ..client("scheduler-kubeconfig", Authority::Cluster, "system:kube-scheduler", &[])
        },
    ];
    if let Some(etcd) = &spec.datastore.etcd {
        let member = |secret, usage| CertificateSpec {
            usage,
            dns_names: (0..etcd.members)
                .map(|number| names.etcd_member(number))
                .chain([names.etcd(), "localhost".to_owned()])
                .collect(),
            ips: vec![IpAddr::from([127, 0, 0, 1])],
            ..client(secret, Authority::Etcd, "etcd", &[])
        };
        all.extend([
            // The gateway of a member is a client of that member, with the certificate of the server.
            member("etcd-server-tls", CertificateUse::Both),
            member("etcd-peer-tls", CertificateUse::Both),
            client("apiserver-etcd-client", Authority::Etcd, "kube-apiserver", &[]),
            client(OPERATOR_ETCD, Authority::Etcd, "fleetwright:cluster-operator", &[]),
        ]);
    }
    all
}

/// The Secret with the Machine-Operator's kubeconfig for the business cluster.
pub const MACHINE_OPERATOR: &str = "machine-operator-kubeconfig";

/// The certificates that extensions beside the control plane have: whose template mounts the Machine-Operator's kubeconfig, gets one.
pub fn of_extensions(package: &ClusterPackageVersionSpec) -> Vec<CertificateSpec> {
    let mut beside = package.extensions.iter().filter(|one| one.placement == ExtensionPlacement::Meta);
    let wanted = beside.any(|one| one.template.contains(MACHINE_OPERATOR)).then(|| CertificateSpec {
        secret: MACHINE_OPERATOR,
        authority: Authority::Cluster,
        common_name: "fleetwright:machine-operator".to_owned(),
        organizations: Vec::new(),
        usage: CertificateUse::Client,
        dns_names: Vec::new(),
        ips: Vec::new(),
        kubeconfig: true,
    });
    wanted.into_iter().collect()
}

fn apiserver(names: &Names, spec: &ClusterSpec, endpoints: &[String]) -> CertificateSpec {
    let namespace = &names.namespace;
    let mut dns_names: Vec<String> = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("kubernetes.default.svc.{}", spec.network.dns_domain)])
        .chain(["kube-apiserver".to_owned(), format!("kube-apiserver.{namespace}"), names.apiserver()])
        .collect();
    let mut ips: Vec<IpAddr> = vec![IpAddr::from([127, 0, 0, 1])];
    ips.extend(service_address(&spec.network.services, 1));
    for name in endpoints.iter().chain(&spec.endpoint.host).chain(&spec.endpoint.names) {
        match name.parse() {
            Ok(ip) if !ips.contains(&ip) => ips.push(ip),
            Err(_) if !dns_names.contains(name) => dns_names.push(name.clone()),
            _ => {}
        }
    }
    CertificateSpec {
        secret: "apiserver-tls",
        authority: Authority::Cluster,
        common_name: "kube-apiserver".to_owned(),
        organizations: Vec::new(),
        usage: CertificateUse::Server,
        dns_names,
        ips,
        kubeconfig: false,
    }
}

/// The address of that number in the network of Services: the first is the Service `kubernetes`, the tenth the cluster's DNS.
pub(super) fn service_address(network: &str, number: u8) -> Option<IpAddr> {
    let (address, _) = network.split_once('/')?;
    Some(match address.parse().ok()? {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).checked_add(number.into())?.into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).checked_add(number.into())?.into()),
    })
}

/// What is known of a certificate that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingCertificate {
    /// When it begins.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
    /// Its DNS names.
    pub dns_names: Vec<String>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its user.
    pub common_name: String,
    /// Its groups.
    pub organizations: Vec<String>,
    /// The key beside it is the one that it was made for.
    pub key_matches: bool,
}

/// Why a certificate is made, or made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalReason {
    /// It is not there.
    Missing,
    /// It cannot be read, or its key is another's.
    Invalid,
    /// It was signed by none of the authority that signs now.
    AuthorityMismatch,
    /// It lacks names, or is for another user.
    NamesMismatch,
    /// Two thirds of its life are over.
    RenewalDue,
}

impl RenewalReason {
    /// One word in CamelCase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::Invalid => "Invalid",
            Self::AuthorityMismatch => "AuthorityMismatch",
            Self::NamesMismatch => "NamesMismatch",
            Self::RenewalDue => "RenewalDue",
        }
    }
}

/// Whether a certificate must be made (anew). `signed` says whether the authority that signs now has signed it, `lifetime` how long those last
/// that are made now.
pub fn due(
    wanted: &CertificateSpec,
    held: Option<&ExistingCertificate>,
    signed: bool,
    lifetime: SignedDuration,
    now: Timestamp,
) -> Option<RenewalReason> {
    let Some(held) = held else { return Some(RenewalReason::Missing) };
    let named = wanted.common_name == held.common_name
        && wanted.organizations == held.organizations
        && wanted.dns_names.iter().all(|name| held.dns_names.contains(name))
        && wanted.ips.iter().all(|ip| held.ips.contains(ip));
    match () {
        () if !held.key_matches => Some(RenewalReason::Invalid),
        () if !signed => Some(RenewalReason::AuthorityMismatch),
        () if !named => Some(RenewalReason::NamesMismatch),
        () if now >= renew_at(held, lifetime) => Some(RenewalReason::RenewalDue),
        () => None,
    }
}

/// Certificates begin a little before they are made, for those whose clocks are behind.
const BEGINS_BEFORE: SignedDuration = SignedDuration::from_mins(10);

/// When two thirds of its life are over. One that lasts longer than those that are made now is held to their life: who makes it shorter does not
/// wait months for it.
pub fn renew_at(held: &ExistingCertificate, lifetime: SignedDuration) -> Timestamp {
    let life = held.not_after.duration_since(held.not_before);
    let life = if life > lifetime.saturating_add(BEGINS_BEFORE) { lifetime } else { life };
    held.not_before.checked_add(life / 3 * 2).unwrap_or(held.not_after)
}
