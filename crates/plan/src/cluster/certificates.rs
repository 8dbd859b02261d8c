//! The certificates and keys of a cluster: the required ones, the contents of the existing ones, and when they are renewed.

use std::net::IpAddr;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ExtensionPlacement};
use jiff::{SignedDuration, Timestamp};

use super::Names;

/// An authority of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    /// Signs the serving certificate of the API server and the certificates of its clients.
    Cluster,
    /// Signs the certificates of etcd's members and clients.
    Etcd,
    /// Signs the certificate with which the API server sends requests of users to extension API servers.
    FrontProxy,
    /// Signs kubelets' serving certificates. Only API servers trust it, and only for kubelets: a node that gets a certificate for a wrong name cannot
    /// pose as an API server.
    Kubelet,
}

impl Authority {
    /// All authorities.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Etcd, Self::FrontProxy, Self::Kubelet];

    /// The Secret that holds the authority: `tls.crt` and `tls.key` of the signing one, `ca.crt` with all trusted ones.
    pub const fn secret(self) -> &'static str {
        match self {
            Self::Cluster => "ca",
            Self::Etcd => "etcd-ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Kubelet => "kubelet-ca",
        }
    }
}

/// Extended key usage of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUse {
    /// Server authentication.
    Server,
    /// Client authentication.
    Client,
    /// Both: a member of etcd is server and client of the other members.
    Both,
}

/// A required certificate of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// The Secret that holds the certificate.
    pub secret: &'static str,
    /// The signing authority.
    pub authority: Authority,
    /// Common name, the user.
    pub common_name: String,
    /// Organizations, the groups of the user.
    pub organizations: Vec<String>,
    /// Extended key usage.
    pub usage: CertificateUse,
    /// DNS names of a server.
    pub dns_names: Vec<String>,
    /// IP addresses of a server.
    pub ips: Vec<IpAddr>,
    /// Whether the Secret holds a kubeconfig with the certificate instead of the key pair.
    pub kubeconfig: bool,
}

/// The Secret with the keys of service-account tokens: `sa.key` and `sa.pub`.
pub const SERVICE_ACCOUNT: &str = "service-account";
/// The Secret with the operator's own certificate for the API servers.
pub const OPERATOR: &str = "operator-client";
/// The Secret with the operator's own certificate for etcd.
pub const OPERATOR_ETCD: &str = "operator-etcd-client";

/// The certificates of a cluster. `endpoints` are the addresses and names of its API servers besides those inside the meta cluster.
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
            // The gRPC gateway of a member is a client of that member, with the serving certificate.
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

/// The certificates of extensions beside the control plane: an extension whose template mounts the Machine-Operator's kubeconfig gets one.
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

/// The address with that number in the Service network: the first is the Service `kubernetes`, the tenth the cluster's DNS.
pub(super) fn service_address(network: &str, number: u8) -> Option<IpAddr> {
    let (address, _) = network.split_once('/')?;
    Some(match address.parse().ok()? {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).checked_add(number.into())?.into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).checked_add(number.into())?.into()),
    })
}

/// Contents of an existing certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingCertificate {
    /// Start of validity.
    pub not_before: Timestamp,
    /// Expiry.
    pub not_after: Timestamp,
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ips: Vec<IpAddr>,
    /// Common name, the user.
    pub common_name: String,
    /// Organizations, the groups of the user.
    pub organizations: Vec<String>,
    /// Whether the key in the Secret belongs to the certificate.
    pub key_matches: bool,
}

/// Why a certificate is issued or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalReason {
    /// The certificate does not exist.
    Missing,
    /// The certificate cannot be parsed, or the key does not belong to it.
    Invalid,
    /// The certificate is not signed by the present signing authority.
    AuthorityMismatch,
    /// The certificate lacks names, or is for another user.
    NamesMismatch,
    /// Two thirds of its life are over.
    RenewalDue,
}

impl RenewalReason {
    /// Reason in CamelCase.
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

/// Whether a certificate must be issued or renewed. `signed`: the present signing authority has signed the certificate. `lifetime`: the life of
/// certificates that are issued now.
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

/// Certificates are valid from a little before their issue, for hosts whose clocks are behind.
const BEGINS_BEFORE: SignedDuration = SignedDuration::from_mins(10);

/// The time when two thirds of its life are over. A certificate that lasts longer than `lifetime` is treated as if it lasted `lifetime`: a shorter
/// setting takes effect without a wait of months.
pub fn renew_at(held: &ExistingCertificate, lifetime: SignedDuration) -> Timestamp {
    let life = held.not_after.duration_since(held.not_before);
    let life = if life > lifetime.saturating_add(BEGINS_BEFORE) { lifetime } else { life };
    held.not_before.checked_add(life / 3 * 2).unwrap_or(held.not_after)
}
