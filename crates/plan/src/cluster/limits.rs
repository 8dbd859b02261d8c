//! Checks a Cluster against ClusterLimits. Only the Cluster's own spec is limited, and the choice of its package version: package versions and limits
//! are written by the fleet's owner.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::{
    ClusterLimitsSpec, ClusterPackageVersionSpec, ClusterSpec, ComponentLimits, ControlPlaneComponent, EndpointType,
    LimitsPreset, NameLimits, hardened_args, hardened_files, is_digest, matches_any,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

use super::Names;
use super::extensions::{ExtensionInputs, TaggedImage, tagged_images};
use super::survey::amount;

/// Number of violations in a message.
const SHOWN: usize = 3;

/// A field of a Cluster that a ClusterLimits does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("ClusterLimits {limits} does not allow {field}: {why}")]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// The name of the ClusterLimits.
    pub limits: String,
    /// The field of the Cluster.
    pub field: String,
    /// The allowed values, and what to do.
    pub why: String,
}

/// Address with which extensions are rendered to find their images: a new cluster has none yet. It is reserved for documentation.
const SERVER: &str = "https://192.0.2.1:6443";
/// Trust bundle with which extensions are rendered to find their images.
const CA_BUNDLE: &str = "-----BEGIN CERTIFICATE-----";

/// The Cluster that is checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckedCluster<'a> {
    /// Names of the parts of the cluster.
    pub names: &'a Names,
    /// The labels of the Cluster.
    pub labels: &'a BTreeMap<String, String>,
    /// The spec to check.
    pub spec: &'a ClusterSpec,
    /// The package version that the control plane has now, with its name, if it is known: extensions are rendered from it until a change to another
    /// one is done.
    pub present: Option<(&'a str, &'a ClusterPackageVersionSpec)>,
}

/// All violations in the spec of that Cluster, sorted by the names of the limits. Limits that do not
/// apply to the Cluster are ignored; all others must allow the spec. `package` is the package version in the spec, if it exists.
pub fn violations<'a>(
    cluster: CheckedCluster<'_>,
    package: Option<&ClusterPackageVersionSpec>,
    limits: impl IntoIterator<Item = (&'a str, &'a ClusterLimitsSpec)>,
) -> Vec<Violation> {
    let spec = cluster.spec;
    let mut all: Vec<_> = limits.into_iter().filter(|(_, limits)| limits.applies_to(&cluster.names.name)).collect();
    all.sort_by_key(|(name, _)| *name);
    let mut found = Vec::new();
    for (name, limits) in all {
        let mut check = Check { limits: name, found: &mut found };
        check.package_version(spec, limits);
        check.images(cluster, package, limits);
        check.components(spec, limits);
        check.extensions(spec, limits);
        check.endpoint(spec, limits);
        check.placement(spec, limits);
        check.storage(spec, limits);
        check.replicas(spec, limits);
        check.datastore(spec, limits);
        check.s3(spec, limits);
    }
    found
}

/// A message with the first violation, and the number of the others.
pub fn summary(violations: &[Violation]) -> String {
    let shown: Vec<_> = violations.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = match violations.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{}{more}", shown.join("; "))
}

/// Images by tag in the extensions of that package version, with the choices of that spec.
fn rendered(
    cluster: CheckedCluster<'_>,
    spec: &ClusterSpec,
    labels: &BTreeMap<String, String>,
    package: (&str, &ClusterPackageVersionSpec),
) -> Vec<TaggedImage> {
    tagged_images(&ExtensionInputs {
        names: cluster.names,
        labels,
        spec,
        package,
        server: Some(SERVER),
        ca_bundle: Some(CA_BUNDLE),
    })
}

/// Images by tag that the choices and labels of the Cluster bring into the extensions of that package version. Its own images by tag are not among them:
/// the way to a package version without such images stays open.
fn chosen(cluster: CheckedCluster<'_>, package: (&str, &ClusterPackageVersionSpec)) -> Vec<TaggedImage> {
    let without = ClusterSpec { extensions: Vec::new(), ..cluster.spec.clone() };
    let own = rendered(cluster, &without, &BTreeMap::new(), package);
    let mut all = rendered(cluster, cluster.spec, cluster.labels, package);
    all.retain(|one| !own.iter().any(|own| (&own.extension, &own.image) == (&one.extension, &one.image)));
    all
}

struct Check<'a> {
    limits: &'a str,
    found: &'a mut Vec<Violation>,
}

impl Check<'_> {
    fn refuse(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.found.push(Violation { limits: self.limits.to_owned(), field: field.into(), why: why.into() });
    }

    fn package_version(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        if let Some(allowed) = &limits.package_versions
            && !matches_any(allowed, &spec.package_version)
        {
            let why = format!("{} is not in packageVersions; {}", spec.package_version, use_one_of(allowed));
            self.refuse("spec.packageVersion", why);
        }
    }

    fn images(
        &mut self,
        cluster: CheckedCluster<'_>,
        package: Option<&ClusterPackageVersionSpec>,
        limits: &ClusterLimitsSpec,
    ) {
        let Some(package) = package.filter(|_| limits.image_digests == Some(true)) else { return };
        let images = ControlPlaneComponent::ALL.map(|component| &package.components.of(component).image);
        let name = &cluster.spec.package_version;
        if let Some(image) = images.into_iter().find(|image| !is_digest(image)) {
            let why = format!(
                "imageDigests is true, but {name} references image {image} by tag; use a package version with images as NAME@sha256:…"
            );
            self.refuse("spec.packageVersion", why);
        }
        let declared = rendered(cluster, cluster.spec, cluster.labels, (name, package));
        let present = cluster.present.filter(|(present, _)| present != name);
        let chosen = present.into_iter().flat_map(|present| chosen(cluster, present));
        // One violation of each extension is enough.
        let mut tagged: Vec<_> = declared.into_iter().chain(chosen).collect();
        let mut known = BTreeSet::new();
        tagged.retain(|one| known.insert(one.extension.clone()));
        for one in tagged {
            let why = format!(
                "imageDigests is true, but {} references image {} by tag; use a package version or values with the image as NAME@sha256:…, or set enabled: false",
                one.object, one.image
            );
            self.refuse(format!("spec.extensions[{}]", one.extension), why);
        }
    }

    fn components(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        for component in ControlPlaneComponent::ALL {
            let Some(overrides) = spec.components.of(component) else { continue };
            let own = limits.components.as_ref().and_then(|all| all.of(component));
            let field = component.field();
            for name in overrides.args.keys() {
                // Components accept an underscore for a dash.
                let plain = name.replace('_', "-");
                let denied = (limits.preset, hardened_args(component));
                let allowed = own.and_then(|own: &ComponentLimits| own.args.as_ref());
                if let Some(why) = refused(denied, allowed, &format!("components.{field}.args"), &plain) {
                    self.refuse(format!("spec.components.{field}.args.{name}"), why);
                }
            }
            for file in &overrides.config {
                let denied = (limits.preset, hardened_files(component));
                let allowed = own.and_then(|own| own.config.as_ref());
                if let Some(why) = refused(denied, allowed, &format!("components.{field}.config"), &file.name) {
                    self.refuse(format!("spec.components.{field}.config[{}]", file.name), why);
                }
            }
        }
    }

    fn extensions(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        let Some(limits) = &limits.extensions else { return };
        for choice in &spec.extensions {
            let field = format!("spec.extensions[{}]", choice.name);
            if let Some(allowed) = limits.allow.as_ref().filter(|allowed| !matches_any(allowed, &choice.name)) {
                self.refuse(&field, format!("the extension is not in extensions.allow; {}", use_one_of(allowed)));
            }
            if limits.values == Some(false) && choice.values.is_some() {
                self.refuse(format!("{field}.values"), "extensions.values is false; remove the values");
            }
        }
    }

    fn endpoint(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        let has = spec.endpoint.type_;
        if let Some(allowed) = limits.endpoint_types.as_ref().filter(|allowed| !allowed.contains(&has)) {
            let names: Vec<_> = allowed.iter().map(|one| endpoint_type(*one)).collect();
            let why = format!("{} is not in endpointTypes; {}", endpoint_type(has), use_one_of(&names));
            self.refuse("spec.endpoint.type", why);
        }
    }

    fn placement(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        let (Some(limits), placement) = (&limits.placement, &spec.placement) else { return };
        for (key, value) in &limits.node_selector {
            if placement.node_selector.get(key) != Some(value) {
                let why = format!("placement.nodeSelector requires {key}: {value:?}; add it");
                self.refuse(format!("spec.placement.nodeSelector.{key}"), why);
            }
        }
        if let Some(allowed) = &limits.toleration_keys {
            for (at, toleration) in placement.tolerations.iter().enumerate() {
                let field = format!("spec.placement.tolerations[{at}]");
                match &toleration.key {
                    Some(key) if matches_any(allowed, key) => {}
                    Some(key) => {
                        let why = format!("{key} is not in placement.tolerationKeys; {}", use_one_of(allowed));
                        self.refuse(format!("{field}.key"), why);
                    }
                    // It tolerates all keys, not only those with some prefix.
                    None if allowed.iter().any(|pattern| pattern == "*") => {}
                    None => {
                        let why = format!("a toleration without a key matches every taint; {}", use_one_of(allowed));
                        self.refuse(format!("{field}.key"), why);
                    }
                }
            }
        }
        if let (Some(allowed), Some(class)) = (&limits.priority_classes, &placement.priority_class_name)
            && !matches_any(allowed, class)
        {
            let why = format!("{class} is not in placement.priorityClasses; remove it, or {}", use_one_of(allowed));
            self.refuse("spec.placement.priorityClassName", why);
        }
    }

    fn storage(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        let Some(limits) = &limits.storage else { return };
        let mut volume = |field: &str, class: Option<&String>, size: &Quantity| {
            if let (Some(allowed), Some(class)) = (&limits.classes, class)
                && !matches_any(allowed, class)
            {
                let why = format!("{class} is not in storage.classes; remove it, or {}", use_one_of(allowed));
                self.refuse(format!("{field}.class"), why);
            }
            if let Some(most) = &limits.max_size {
                // A size that cannot be compared is a violation.
                let fits = amount(&size.0).zip(amount(&most.0)).is_some_and(|(size, most)| size <= most);
                if !fits {
                    let why = format!("{} is more than storage.maxSize; use at most {}", size.0, most.0);
                    self.refuse(format!("{field}.size"), why);
                }
            }
        };
        if let Some(etcd) = &spec.datastore.etcd {
            volume("spec.datastore.etcd.storage", etcd.storage.class.as_ref(), &etcd.storage.size);
        }
        if let Some(snapshots) = spec.snapshots().filter(|snapshots| snapshots.s3.is_none()) {
            let kept = snapshots.volume.unwrap_or_default();
            volume("spec.snapshots.volume", kept.class.as_ref(), &kept.size);
        }
    }

    fn replicas(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        if let Some(most) = limits.max_replicas.filter(|most| spec.replicas > *most) {
            let why = format!("{} is more than maxReplicas; use at most {most}", spec.replicas);
            self.refuse("spec.replicas", why);
        }
    }

    fn datastore(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        if limits.external_datastore == Some(false) && spec.datastore.external.is_some() {
            self.refuse("spec.datastore.external", "externalDatastore is false; use datastore.etcd");
        }
    }

    fn s3(&mut self, spec: &ClusterSpec, limits: &ClusterLimitsSpec) {
        let bucket = spec.snapshots.as_ref().and_then(|snapshots| snapshots.s3.as_ref());
        let (Some(limits), Some(bucket)) = (&limits.s3, bucket) else { return };
        let plain = |url: &str| url.trim_end_matches('/').to_owned();
        if let Some(allowed) = &limits.endpoints
            && !allowed.iter().any(|one| plain(one) == plain(&bucket.endpoint))
        {
            let why = format!("{} is not in s3.endpoints; {}", bucket.endpoint, use_one_of(allowed));
            self.refuse("spec.snapshots.s3.endpoint", why);
        }
        if let Some(allowed) = limits.buckets.as_ref().filter(|allowed| !matches_any(allowed, &bucket.bucket)) {
            let why = format!("{} is not in s3.buckets; {}", bucket.bucket, use_one_of(allowed));
            self.refuse("spec.snapshots.s3.bucket", why);
        }
    }
}

/// Why that name is a violation, if it is one.
fn refused(
    preset: (Option<LimitsPreset>, &[&str]),
    own: Option<&NameLimits>,
    list: &str,
    name: &str,
) -> Option<String> {
    if preset.0 == Some(LimitsPreset::Hardened) && matches_any(preset.1, name) {
        return Some("preset Hardened denies it; remove it".to_owned());
    }
    let own = own?;
    if own.deny.as_ref().is_some_and(|denied| matches_any(denied, name)) {
        return Some(format!("it is in {list}.deny; remove it"));
    }
    let allowed = own.allow.as_ref().filter(|allowed| !matches_any(allowed, name))?;
    Some(format!("it is not in {list}.allow; remove it, or {}", use_one_of(allowed)))
}

fn use_one_of<T: AsRef<str>>(allowed: &[T]) -> String {
    match allowed {
        [] => "none is allowed".to_owned(),
        _ => {
            let names: Vec<_> = allowed.iter().map(|one| one.as_ref().to_owned()).collect();
            format!("allowed: {}", super::some(&names))
        }
    }
}

const fn endpoint_type(one: EndpointType) -> &'static str {
    match one {
        EndpointType::ClusterIP => "ClusterIP",
        EndpointType::NodePort => "NodePort",
        EndpointType::LoadBalancer => "LoadBalancer",
        EndpointType::External => "External",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleetwright_api::Extension;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn spec(change: Value) -> ClusterSpec {
        let mut spec = json!({ "packageVersion": "k8s-1" });
        for (field, value) in change.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        serde_json::from_value(spec).expect("it is a Cluster's spec")
    }

    fn limits(limits: Value) -> ClusterLimitsSpec {
        let mut spec = json!({ "clusters": ["*"] });
        for (field, value) in limits.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        serde_json::from_value(spec).expect("they are limits")
    }

    /// The violations by the Cluster `fleet/NAME`, which has no labels.
    fn check<'a>(
        spec: &ClusterSpec,
        name: &str,
        package: Option<&ClusterPackageVersionSpec>,
        limits: impl IntoIterator<Item = (&'a str, &'a ClusterLimitsSpec)>,
    ) -> Vec<Violation> {
        let (names, labels) = (Names::of("fleet", name), BTreeMap::new());
        violations(CheckedCluster { names: &names, labels: &labels, spec, present: None }, package, limits)
    }

    fn found(cluster: Value, limited: Value) -> Vec<String> {
        let limits = limits(limited);
        check(&spec(cluster), "pay", None, [("floor", &limits)]).into_iter().map(|one| one.field).collect()
    }

    /// Each line: limits, a Cluster that they allow, one that they do not, and the violated field.
    #[test]
    fn each_limit_refuses_what_is_beyond_it_and_nothing_else() {
        let args = |component: &str, name: &str| json!({ "components": { component: { "args": { name: "1" } } } });
        let file =
            |name: &str| json!({ "components": { "apiserver": { "config": [{ "name": name, "content": "" }] } } });
        let s3 = |endpoint: &str, bucket: &str| json!({ "snapshots": { "s3": { "endpoint": endpoint, "bucket": bucket, "secretRef": { "name": "s" } } } });
        let tolerates = |one: Value| json!({ "placement": { "tolerations": [one] } });
        let etcd = |storage: Value| json!({ "datastore": { "etcd": { "storage": storage } } });
        let external =
            json!({ "datastore": { "external": { "endpoints": ["https://a:2379"], "secretRef": { "name": "s" } } } });
        let lists = |field: &str, of: Value| json!({ "components": { "apiserver": { field: of } } });
        let cases = [
            (
                json!({ "packageVersions": ["k8s-1", "old-*"] }),
                json!({}),
                json!({ "packageVersion": "k8s-2" }),
                "spec.packageVersion",
            ),
            (
                lists("args", json!({ "deny": ["v", "oidc-*"] })),
                args("scheduler", "v"),
                args("apiserver", "v"),
                "spec.components.apiserver.args.v",
            ),
            (
                lists("args", json!({ "deny": ["oidc-*"] })),
                args("apiserver", "v"),
                args("apiserver", "oidc-client-id"),
                "spec.components.apiserver.args.oidc-client-id",
            ),
            (
                lists("args", json!({ "deny": ["token-auth-file"] })),
                args("apiserver", "v"),
                args("apiserver", "token_auth_file"),
                "spec.components.apiserver.args.token_auth_file",
            ),
            (
                lists("args", json!({ "allow": ["v"] })),
                args("apiserver", "v"),
                args("apiserver", "vmodule"),
                "spec.components.apiserver.args.vmodule",
            ),
            (
                lists("args", json!({ "allow": ["*"], "deny": ["v"] })),
                args("apiserver", "vmodule"),
                args("apiserver", "v"),
                "spec.components.apiserver.args.v",
            ),
            (
                lists("config", json!({ "allow": ["audit.yaml"] })),
                file("audit.yaml"),
                file("notes"),
                "spec.components.apiserver.config[notes]",
            ),
            (
                lists("config", json!({ "deny": ["audit.yaml"] })),
                file("notes"),
                file("audit.yaml"),
                "spec.components.apiserver.config[audit.yaml]",
            ),
            (
                json!({ "components": { "etcd": { "args": { "allow": [] } } } }),
                args("apiserver", "v"),
                args("etcd", "max-wals"),
                "spec.components.etcd.args.max-wals",
            ),
            (
                json!({ "components": { "controllerManager": { "args": { "allow": [] } } } }),
                args("scheduler", "v"),
                args("controllerManager", "v"),
                "spec.components.controllerManager.args.v",
            ),
            (
                json!({ "components": { "scheduler": { "args": { "allow": [] } } } }),
                args("etcd", "max-wals"),
                args("scheduler", "v"),
                "spec.components.scheduler.args.v",
            ),
            (
                json!({ "extensions": { "allow": ["coredns"] } }),
                json!({ "extensions": [{ "name": "coredns", "values": {} }] }),
                json!({ "extensions": [{ "name": "kube-proxy", "enabled": false }] }),
                "spec.extensions[kube-proxy]",
            ),
            (
                json!({ "extensions": { "values": false } }),
                json!({ "extensions": [{ "name": "coredns", "enabled": false }] }),
                json!({ "extensions": [{ "name": "coredns", "values": {} }] }),
                "spec.extensions[coredns].values",
            ),
            (
                json!({ "endpointTypes": ["ClusterIP", "External"] }),
                json!({}),
                json!({ "endpoint": { "type": "NodePort" } }),
                "spec.endpoint.type",
            ),
            (
                json!({ "placement": { "nodeSelector": { "pool": "cp" } } }),
                json!({ "placement": { "nodeSelector": { "pool": "cp", "zone": "a" } } }),
                json!({ "placement": { "nodeSelector": { "pool": "db" } } }),
                "spec.placement.nodeSelector.pool",
            ),
            (
                json!({ "placement": { "nodeSelector": { "pool": "cp" } } }),
                json!({ "placement": { "nodeSelector": { "pool": "cp" } } }),
                json!({}),
                "spec.placement.nodeSelector.pool",
            ),
            (
                json!({ "placement": { "tolerationKeys": ["cp"] } }),
                tolerates(json!({ "key": "cp" })),
                tolerates(json!({ "key": "db" })),
                "spec.placement.tolerations[0].key",
            ),
            (
                json!({ "placement": { "tolerationKeys": ["cp", "x*"] } }),
                json!({}),
                tolerates(json!({ "operator": "Exists" })),
                "spec.placement.tolerations[0].key",
            ),
            (
                json!({ "placement": { "priorityClasses": ["low"] } }),
                json!({ "placement": { "priorityClassName": "low" } }),
                json!({ "placement": { "priorityClassName": "system-cluster-critical" } }),
                "spec.placement.priorityClassName",
            ),
            (
                json!({ "storage": { "classes": ["fast"] } }),
                etcd(json!({ "class": "fast" })),
                etcd(json!({ "class": "slow" })),
                "spec.datastore.etcd.storage.class",
            ),
            (
                json!({ "storage": { "classes": ["fast"] } }),
                json!({}),
                json!({ "snapshots": { "volume": { "class": "slow" } } }),
                "spec.snapshots.volume.class",
            ),
            (
                json!({ "storage": { "maxSize": "20Gi" } }),
                json!({}),
                etcd(json!({ "size": "21Gi" })),
                "spec.datastore.etcd.storage.size",
            ),
            (
                json!({ "storage": { "maxSize": "20Gi" } }),
                etcd(json!({ "size": "20480Mi" })),
                etcd(json!({ "size": "1Ei" })),
                "spec.datastore.etcd.storage.size",
            ),
            (
                json!({ "storage": { "maxSize": "20Gi" } }),
                json!({}),
                json!({ "snapshots": { "volume": { "size": "1Ti" } } }),
                "spec.snapshots.volume.size",
            ),
            (
                json!({ "storage": { "maxSize": "10Gi" } }),
                s3("https://a", "b"),
                json!({}),
                "spec.snapshots.volume.size",
            ),
            (json!({ "maxReplicas": 2 }), json!({ "replicas": 2 }), json!({ "replicas": 3 }), "spec.replicas"),
            (json!({ "externalDatastore": false }), json!({}), external.clone(), "spec.datastore.external"),
            (
                json!({ "s3": { "endpoints": ["https://a"] } }),
                s3("https://a/", "b"),
                s3("https://a.evil", "b"),
                "spec.snapshots.s3.endpoint",
            ),
            (json!({ "s3": { "endpoints": [] } }), json!({}), s3("https://a", "b"), "spec.snapshots.s3.endpoint"),
            (
                json!({ "s3": { "buckets": ["fleet-*"] } }),
                s3("https://a", "fleet-1"),
                s3("https://a", "other"),
                "spec.snapshots.s3.bucket",
            ),
        ];
        for (limited, within, beyond, field) in cases {
            assert_eq!(found(within.clone(), limited.clone()), Vec::<String>::new(), "{limited} {within}");
            assert_eq!(found(beyond.clone(), limited.clone()), [field], "{limited} {beyond}");
        }
        assert_eq!(found(external, json!({ "externalDatastore": true })), Vec::<String>::new());
        let anything = tolerates(json!({ "operator": "Exists" }));
        assert!(found(anything, json!({ "placement": { "tolerationKeys": ["*"] } })).is_empty());
    }

    #[test]
    fn the_preset_refuses_what_loosens_a_control_plane_whatever_the_lists_allow() {
        let all = json!({ "args": { "allow": ["*"] }, "config": { "allow": ["*"] } });
        let hardened = json!({ "preset": "Hardened", "components": { "apiserver": all, "scheduler": all } });
        for name in [
            "aggregator-reject-forwarding-redirect",
            "token-auth-file",
            "authentication-token-webhook-config-file",
            "disable-admission-plugins",
            "enable-admission-plugins",
            "audit-webhook-config-file",
            "oidc-issuer-url",
            "service-account-issuer",
            "feature-gates",
        ] {
            let cluster = json!({ "components": { "apiserver": { "args": { name: "x" } } } });
            assert_eq!(found(cluster.clone(), hardened.clone()), [format!("spec.components.apiserver.args.{name}")]);
            assert!(found(cluster, json!({ "maxReplicas": 9 })).is_empty());
        }
        for (component, name) in [
            ("apiserver", "authorization.yaml"),
            ("apiserver", "authentication.yaml"),
            ("apiserver", "admission.yaml"),
            ("apiserver", "egress.yaml"),
            ("scheduler", "scheduler.yaml"),
        ] {
            let cluster = json!({ "components": { component: { "config": [{ "name": name, "content": "" }] } } });
            assert_eq!(found(cluster, hardened.clone()), [format!("spec.components.{component}.config[{name}]")]);
        }
        let usual = json!({ "components": {
            "apiserver": { "args": { "v": "2", "max-requests-inflight": "400" }, "config": [{ "name": "encryption.yaml", "secret": { "name": "s", "key": "k" } }] },
            "scheduler": { "args": { "v": "2" } },
        } });
        assert_eq!(found(usual, hardened), Vec::<String>::new());
    }

    #[test]
    fn images_by_tag_are_refused_where_digests_are_demanded() {
        let mut package = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
        let (spec, demanded) = (spec(json!({})), limits(json!({ "imageDigests": true })));
        let found = |package: &ClusterPackageVersionSpec, limits: &ClusterLimitsSpec| {
            check(&spec, "pay", Some(package), [("pinned", limits)])
        };
        assert!(found(&package, &limits(json!({ "imageDigests": false }))).is_empty());
        let parts = &mut package.components;
        for part in [&mut parts.etcd, &mut parts.apiserver, &mut parts.controller_manager, &mut parts.scheduler] {
            part.image += &format!("@sha256:{}", "a".repeat(64));
        }
        assert!(found(&package, &demanded).is_empty());
        package.components.scheduler.image = "registry.example/kube-scheduler:v1.36.4".to_owned();
        let found = found(&package, &demanded);
        assert!(found.len() == 1 && found[0].field == "spec.packageVersion", "{found:?}");
        assert!(found[0].why.contains("registry.example/kube-scheduler:v1.36.4"), "{found:?}");
    }

    /// A package version with components by digest and one extension.
    fn pinned_with(extension: Extension) -> ClusterPackageVersionSpec {
        let mut package = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
        let parts = &mut package.components;
        for part in [&mut parts.etcd, &mut parts.apiserver, &mut parts.controller_manager, &mut parts.scheduler] {
            part.image += &format!("@sha256:{}", "a".repeat(64));
        }
        package.extensions = vec![extension];
        package
    }

    #[test]
    fn images_of_extensions_by_tag_are_refused_where_digests_are_demanded() {
        let demanded = limits(json!({ "imageDigests": true }));
        let fields = |spec: &ClusterSpec, package: &ClusterPackageVersionSpec| {
            let found = check(spec, "pay", Some(package), [("pinned", &demanded)]);
            found.into_iter().map(|one| (one.field, one.why)).collect::<Vec<_>>()
        };
        let digest = format!("registry.example/agent@sha256:{}", "b".repeat(64));
        let pod = |pod: Value| json!({ "template": { "spec": pod } });
        let one = |image: &str| json!([{ "name": "a", "image": digest }, { "name": "b", "image": image }]);
        // Every place of an image in a pod, in every workload, with images by digest beside it.
        let spec_with = |place: &str, image: &str| match place {
            "volumes" => json!({ "volumes": [{ "name": "a", "image": { "reference": image } }] }),
            place => json!({ place: one(image) }),
        };
        for place in ["containers", "initContainers", "ephemeralContainers", "volumes"] {
            for (kind, version, within) in [
                ("Deployment", "apps/v1", 0),
                ("DaemonSet", "apps/v1", 0),
                ("Pod", "v1", 1),
                ("CronJob", "batch/v1", 2),
            ] {
                for (image, refused) in [("registry.example/agent:v1", true), (digest.as_str(), false)] {
                    let spec_of = spec_with(place, image);
                    let object = match within {
                        0 => pod(spec_of),
                        1 => spec_of,
                        _ => json!({ "schedule": "@daily", "jobTemplate": { "spec": pod(spec_of) } }),
                    };
                    let metadata = json!({ "name": "agent", "namespace": "kube-system" });
                    let object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": object });
                    let extension =
                        Extension { name: "agent".to_owned(), template: object.to_string(), ..Extension::default() };
                    let found = fields(&spec(json!({})), &pinned_with(extension));
                    assert_eq!(found.len(), usize::from(refused), "{kind}, {place}, {image}: {found:?}");
                    for (field, why) in found {
                        assert_eq!(field, "spec.extensions[agent]");
                        let object = format!("{kind} kube-system/agent");
                        for part in [object.as_str(), image, "NAME@sha256:", "enabled: false"] {
                            assert!(why.contains(part), "{part} is not in {why}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_image_of_an_extension_from_values_is_checked_as_it_is_rendered() {
        let (demanded, digest) =
            (limits(json!({ "imageDigests": true })), format!("registry.example/agent@sha256:{}", "b".repeat(64)));
        let template = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: agent\n  namespace: kube-system\n\
            \x20 labels: {tier: {{ cluster.labels.tier | json }} }\nspec:\n  containers:\n  - name: a\n\
            \x20   image: {{ values.image | json }}\n\
            \x20   args: [{{ cluster.server | json }}, {{ cluster.caDigest | json }}]\n";
        let schema = "type: object\nproperties: {image: {type: string, default: 'registry.example/agent:v1'}}\n";
        let package = pinned_with(Extension {
            name: "agent".to_owned(),
            template: template.to_owned(),
            values_schema: Some(schema.to_owned()),
            ..Extension::default()
        });
        let (names, labels) = (Names::of("fleet", "pay"), BTreeMap::from([("tier".to_owned(), "prod".to_owned())]));
        let found = |extensions: Value| {
            let spec = spec(json!({ "extensions": extensions }));
            let cluster = CheckedCluster { names: &names, labels: &labels, spec: &spec, present: None };
            let found = violations(cluster, Some(&package), [("pinned", &demanded)]);
            found.into_iter().map(|one| one.why).collect::<Vec<_>>()
        };
        let by_default = found(json!([]));
        assert!(by_default.len() == 1 && by_default[0].contains("registry.example/agent:v1"), "{by_default:?}");
        let chosen = found(json!([{ "name": "agent", "values": { "image": "registry.eve.example/agent:v2" } }]));
        assert!(chosen.len() == 1 && chosen[0].contains("registry.eve.example/agent:v2"), "{chosen:?}");
        assert!(found(json!([{ "name": "agent", "values": { "image": digest } }])).is_empty());
        assert!(found(json!([{ "name": "agent", "enabled": false }])).is_empty());
    }

    #[test]
    fn choices_for_the_present_package_version_are_checked_while_the_declared_one_is_not_reached() {
        let demanded = limits(json!({ "imageDigests": true }));
        let digest = format!("registry.example/agent@sha256:{}", "b".repeat(64));
        let template = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: agent\n  namespace: kube-system\nspec:\n  containers:\n\
            \x20 - name: a\n    image: {{ values.image | json }}\n";
        let agent = |default: &str| {
            let schema = format!("type: object\nproperties: {{image: {{type: string, default: '{default}'}}}}\n");
            pinned_with(Extension {
                name: "agent".to_owned(),
                template: template.to_owned(),
                values_schema: Some(schema),
                ..Extension::default()
            })
        };
        let (by_digest, by_tag) = (agent(&digest), agent("registry.example/agent:v1"));
        let declared = pinned_with(Extension {
            name: "other".to_owned(),
            template: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: kube-system}\n".to_owned(),
            ..Extension::default()
        });
        let (names, labels) = (Names::of("fleet", "pay"), BTreeMap::new());
        let found = |present: &ClusterPackageVersionSpec, extensions: Value| {
            let spec = spec(json!({ "extensions": extensions }));
            let present = Some(("another", present));
            let cluster = CheckedCluster { names: &names, labels: &labels, spec: &spec, present };
            let found = violations(cluster, Some(&declared), [("pinned", &demanded)]);
            found.into_iter().map(|one| one.why).collect::<Vec<_>>()
        };
        let evil = json!([{ "name": "agent", "values": { "image": "registry.eve.example/agent:v2" } }]);
        for present in [&by_digest, &by_tag] {
            let refused = found(present, evil.clone());
            assert!(refused.len() == 1 && refused[0].contains("registry.eve.example/agent:v2"), "{refused:?}");
            assert!(found(present, json!([])).is_empty(), "the way to another package version is open");
        }
    }

    #[test]
    fn all_limits_that_apply_to_the_name_must_allow_it() {
        let (mut one, mut other) = (limits(json!({ "maxReplicas": 3 })), limits(json!({ "maxReplicas": 1 })));
        let spec = spec(json!({ "replicas": 2 }));
        let found = check(&spec, "pay-01", None, [("b", &one), ("a", &other)]);
        assert_eq!(found.iter().map(|one| one.limits.as_str()).collect::<Vec<_>>(), ["a"]);
        other.clusters = vec!["shop-*".to_owned()];
        assert!(check(&spec, "pay-01", None, [("b", &one), ("a", &other)]).is_empty());
        assert_eq!(check(&spec, "shop-01", None, [("b", &one), ("a", &other)]).len(), 1);
        (one.max_replicas, other.max_replicas, other.clusters) = (Some(1), Some(1), vec!["pay-01".to_owned()]);
        let found = check(&spec, "pay-01", None, [("b", &one), ("a", &other)]);
        assert_eq!(found.iter().map(|one| one.limits.as_str()).collect::<Vec<_>>(), ["a", "b"], "in a stable order");
        let text = summary(&found);
        for part in ["ClusterLimits a", "spec.replicas", "at most 1"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        // Long names must not make the status too large to write.
        let long: Vec<_> = found.iter().map(|one| Violation { why: "x".repeat(2000), ..one.clone() }).collect();
        let status = super::super::failed_pass_status(
            &Default::default(),
            "LimitExceeded",
            &summary(&long),
            None,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(status.waiting_for.map(|text| text.chars().count()), Some(1024));
        assert!(status.conditions[0].message.len() > 4000);
        let many: Vec<_> = found.iter().cycle().take(9).cloned().collect();
        assert!(summary(&many).ends_with("; and 6 more"), "{}", summary(&many));
    }
}
