//! Schemas of texts in Clusters and their package versions.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::text::{QUANTITY, ruled, set_of};
use crate::{ComponentOverrides, ComponentPackage, ControlPlaneComponent, arguments, templates};

/// Maximum length of the template of an extension, in characters.
const MAX_TEMPLATE: u32 = 65536;

/// Limits the total length of all texts of a package version to what the datastore can store.
pub(crate) const ALL_TEXTS: &str = "(has(self.components.apiserver.config) ? self.components.apiserver.config.map(file, size(file.content)).sum() : 0) \
+ (has(self.components.scheduler.config) ? self.components.scheduler.config.map(file, size(file.content)).sum() : 0) \
+ (has(self.extensions) ? self.extensions.map(extension, size(extension.template) + (has(extension.valuesSchema) ? size(extension.valuesSchema) : 0)).sum() : 0) <= 262144";

/// A version of three numbers.
pub(crate) fn version(_: &mut SchemaGenerator) -> Schema {
    ruled(
        32,
        "self.matches('^(0|[1-9][0-9]{0,4})([.](0|[1-9][0-9]{0,4})){2}$')",
        "must be a version of three numbers without a leading v, such as 1.36.4",
    )
}

/// An image. Without a tag or digest, or with the tag `latest`, the image could change later.
pub(crate) fn image(_: &mut SchemaGenerator) -> Schema {
    ruled(
        512,
        "self.matches('^[a-z0-9][a-zA-Z0-9._:/-]*/?[a-z0-9._-]+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$') && self.matches('(:[^/@]+|@sha256:[0-9a-f]{64})$') && !self.endsWith(':latest')",
        "must be an image with a tag other than latest, or with a digest, such as registry.example/kube-apiserver:v1.36.4 or registry.example/kube-apiserver@sha256:…",
    )
}

/// The tag of the image is a version, with at most a build number: `v3.6.16-0`.
const PLAIN_TAG: &str = ":v?[0-9]+[.][0-9]+[.][0-9]+(-[0-9]+)?(@sha256:[0-9a-f]{64})?$";

/// Checks that a component has a version, in its tag or in `version`.
pub(crate) fn tag_tells(component: &str) -> String {
    format!("has({component}.version) || {component}.image.matches('{PLAIN_TAG}')")
}

pub(crate) const IMAGE_TELLS: &str = "the image must be of the version that kubernetes says: give one whose tag is that version, such as registry.example/kube-apiserver:v1.36.4, or version beside a digest or another tag";

/// Checks that a Kubernetes component has the version of the package: a tag that is a version must be this one; otherwise `version` must be set to it.
pub(crate) fn image_tells(component: &str) -> String {
    format!(
        "(!has({component}.version) || {component}.version == self.kubernetes) && \
         ({component}.image.matches('{PLAIN_TAG}') ? ({component}.image + '@').matches(':v?' + self.kubernetes.replace('.', '[.]') + '(-[0-9]+)?@') : has({component}.version))"
    )
}

/// Versions from which a cluster may be upgraded, or to which it may be rolled back.
pub(crate) fn versions(_: &mut SchemaGenerator) -> Schema {
    let version = ruled(
        253,
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "must be a minor of Kubernetes, such as 1.36, or the name of a ClusterPackageVersion",
    );
    set_of(version, 64)
}

/// Checks that the minors in a list are the minor of the package or the one below it.
pub(crate) fn minors(list: &str) -> String {
    format!(
        "!has(self.{list}) || !self.kubernetes.matches('^[0-9]+[.][0-9]+[.]') || self.{list}.all(version, !version.matches('^[0-9]{{1,5}}[.][0-9]{{1,5}}$') || \
         (version.split('.')[0] == self.kubernetes.split('.')[0] && int(self.kubernetes.split('.')[1]) - int(version.split('.')[1]) in [0, 1]))"
    )
}

/// Arguments of a component: names, and values of one line.
pub(crate) fn arguments(_: &mut SchemaGenerator) -> Schema {
    let value = ruled(4096, r"self.matches('^[^\\x00-\\x1f\\x7f]*$')", "must be one line without control characters");
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": value})
}

/// Name of a configuration file.
pub(crate) fn file_name(_: &mut SchemaGenerator) -> Schema {
    ruled(
        128,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "must be the name of a file: letters, digits, -, _ and ., beginning with a letter or digit, such as admission.yaml",
    )
}

/// A schema with the rules of one component: its known arguments and configuration files.
fn of_component<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    component: ControlPlaneComponent,
    files: (&str, &str),
) -> Schema {
    let mut schema = T::json_schema(generator);
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut).expect("a component has properties");
    properties["args"]["x-kubernetes-validations"] = arguments::rules(component);
    properties["config"]["x-kubernetes-validations"] = json!([{"rule": files.0, "message": files.1}]);
    schema
}

const NO_FILES: &str = "self.size() == 0";
const NOT_OF_ETCD: (&str, &str) = (NO_FILES, "etcd takes no configuration files here: leave config out and use args");
const NOT_OF_CONTROLLER_MANAGER: (&str, &str) =
    (NO_FILES, "kube-controller-manager has no configuration files: leave config out and use args");
const OF_SCHEDULER: (&str, &str) = (
    "self.all(file, file.name == 'scheduler.yaml')",
    "kube-scheduler takes one file, a KubeSchedulerConfiguration: name it scheduler.yaml",
);

pub(crate) fn etcd_package(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentPackage>(generator, ControlPlaneComponent::Etcd, NOT_OF_ETCD)
}

pub(crate) fn apiserver_package(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = of_component::<ComponentPackage>(
        generator,
        ControlPlaneComponent::Apiserver,
        (
            "self.all(file, !file.name.endsWith('.yaml') || file.name in ['admission.yaml', 'audit.yaml', 'authentication.yaml', 'authorization.yaml', 'egress.yaml', 'encryption.yaml', 'tracing.yaml'])",
            "kube-apiserver takes admission.yaml, audit.yaml, authentication.yaml, authorization.yaml, egress.yaml and tracing.yaml: use one of these names; files that they refer to have names that do not end in .yaml",
        ),
    );
    let rules = schema.pointer_mut("/properties/config/x-kubernetes-validations").and_then(Value::as_array_mut);
    rules.expect("there is a rule").push(json!({
        "rule": "!self.exists(file, file.name == 'encryption.yaml')",
        "message": "encryption.yaml holds keys, and everybody who may read package versions would read them: keep it in a Secret and name that in components.apiserver.config of the Cluster",
    }));
    schema
}

pub(crate) fn controller_manager_package(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentPackage>(generator, ControlPlaneComponent::ControllerManager, NOT_OF_CONTROLLER_MANAGER)
}

pub(crate) fn scheduler_package(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentPackage>(generator, ControlPlaneComponent::Scheduler, OF_SCHEDULER)
}

pub(crate) fn etcd_overrides(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentOverrides>(generator, ControlPlaneComponent::Etcd, NOT_OF_ETCD)
}

pub(crate) fn apiserver_overrides(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = of_component::<ComponentOverrides>(
        generator,
        ControlPlaneComponent::Apiserver,
        (
            "self.all(file, !file.name.endsWith('.yaml') || file.name in ['admission.yaml', 'audit.yaml', 'authentication.yaml', 'authorization.yaml', 'egress.yaml', 'encryption.yaml', 'tracing.yaml'])",
            "kube-apiserver takes admission.yaml, audit.yaml, authentication.yaml, authorization.yaml, egress.yaml, encryption.yaml and tracing.yaml: use one of these names; files that they refer to have names that do not end in .yaml",
        ),
    );
    let rules = schema.pointer_mut("/properties/config/x-kubernetes-validations").and_then(Value::as_array_mut);
    rules.expect("there is a rule").push(json!({
        "rule": "!self.exists(file, file.name == 'encryption.yaml' && has(file.content))",
        "message": "encryption.yaml holds keys, and everybody who may read clusters would read them: keep it in a Secret and name that in secret",
    }));
    schema
}

pub(crate) fn controller_manager_overrides(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentOverrides>(generator, ControlPlaneComponent::ControllerManager, NOT_OF_CONTROLLER_MANAGER)
}

pub(crate) fn scheduler_overrides(generator: &mut SchemaGenerator) -> Schema {
    of_component::<ComponentOverrides>(generator, ControlPlaneComponent::Scheduler, OF_SCHEDULER)
}

fn quantity() -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self > 0 : isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
            "message": QUANTITY,
        }],
    })
}

/// Compute resources of a pod, by resource.
pub(crate) fn resources(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": quantity(),
        "x-kubernetes-validations": [{
            "rule": "self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'])",
            "message": "every name must be cpu, memory or ephemeral-storage",
        }],
    })
}

/// Size of a volume.
pub(crate) fn size(_: &mut SchemaGenerator) -> Schema {
    quantity()
}

/// Expression: snapshots are or were stored in a bucket, so that nothing is known of a volume.
fn in_bucket() -> String {
    ["self", "oldSelf"].map(|of| format!("(has({of}.snapshots) && has({of}.snapshots.s3))")).join(" || ")
}

/// Checks that the volume of snapshots does not shrink, also if it is omitted.
pub(crate) fn snapshots_do_not_shrink() -> String {
    let [new, old] = ["self", "oldSelf"].map(|of| {
        format!("(has({of}.snapshots) && has({of}.snapshots.volume) ? string({of}.snapshots.volume.size) : '20Gi')")
    });
    let bucket = in_bucket();
    format!("{bucket} || !isQuantity({new}) || !isQuantity({old}) || quantity({new}).compareTo(quantity({old})) >= 0")
}

/// Checks that the volume of snapshots keeps its StorageClass, also if it is omitted.
pub(crate) fn snapshots_keep_their_class() -> String {
    let [new, old] = ["self", "oldSelf"].map(|of| {
        let volume = format!("{of}.snapshots.volume");
        format!("(has({of}.snapshots) && has({volume}) && has({volume}.class) ? {volume}.class : '')")
    });
    format!("{} || {new} == {old}", in_bucket())
}

/// Number of etcd members.
pub(crate) fn members(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int32",
        "x-kubernetes-validations": [{
            "rule": "self in [1, 3, 5, 7]",
            "message": "must be 1, 3, 5 or 7: an even number tolerates no more losses than the odd one below it, and more than seven are slower",
        }],
    })
}

fn network(least: (u8, u8), most: (u8, u8), example: &str, what: &str) -> Schema {
    ruled(
        64,
        &format!(
            "isCIDR(self) && cidr(self) == cidr(self).masked() && (cidr(self).ip().family() == 4 ? cidr(self).prefixLength() >= {} && cidr(self).prefixLength() <= {} : cidr(self).prefixLength() >= {} && cidr(self).prefixLength() <= {})",
            least.0, most.0, least.1, most.1
        ),
        &format!(
            "must be {what}: its first address and the length of its prefix, {} to {} (IPv6: {} to {}), such as {example}",
            least.0, most.0, least.1, most.1
        ),
    )
}

/// Pod network. Each Node gets a /24 or /64 of it, and Kubernetes supports at most 16 bits of such parts.
pub(crate) fn pods(_: &mut SchemaGenerator) -> Schema {
    network((8, 48), (24, 64), "10.244.0.0/16", "the network of pods")
}

/// Service network. kube-apiserver accepts at most 20 bits; DNS has the tenth address.
pub(crate) fn services(_: &mut SchemaGenerator) -> Schema {
    network((12, 108), (28, 124), "10.96.0.0/16", "the network of Services")
}

/// DNS domain of the cluster.
pub(crate) fn dns_domain(_: &mut SchemaGenerator) -> Schema {
    ruled(
        128,
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "must be a DNS name without a dot at its end, such as cluster.local",
    )
}

/// Client URLs of an external etcd.
pub(crate) fn endpoints(_: &mut SchemaGenerator) -> Schema {
    let endpoint = ruled(
        512,
        "isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != '' && url(self).getEscapedPath() in ['', '/']",
        "must be the URL of a member of etcd, with https and without a path, such as https://10.0.0.5:2379",
    );
    let mut list = set_of(endpoint, 9);
    list.insert("minItems".to_owned(), 1.into());
    list
}

/// Prefix of keys in a datastore.
pub(crate) fn prefix(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$')",
        "must be the beginning of keys: / and names, without / at its end, such as /registry",
    )
}

/// URL of an S3-compatible store.
pub(crate) fn store(_: &mut SchemaGenerator) -> Schema {
    ruled(
        512,
        "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && url(self).getEscapedPath() in ['', '/']",
        "must be the URL of a store, without bucket and path, such as https://s3.example.com",
    )
}

/// Name of a bucket.
pub(crate) fn bucket(_: &mut SchemaGenerator) -> Schema {
    ruled(
        63,
        "size(self) >= 3 && !format.dns1123Subdomain().validate(self).hasValue()",
        "must be the name of a bucket: 3 to 63 lower-case letters, digits, - and ., beginning and ending with a letter or digit",
    )
}

/// Prefix of object names in a bucket.
pub(crate) fn object_prefix(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^([A-Za-z0-9][A-Za-z0-9._-]*/)+$')",
        "must be the beginning of names: names and /, with / at its end, such as meta-1/",
    )
}

/// Name of a snapshot.
pub(crate) fn snapshot(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._:-]*$')",
        "must be the name of a snapshot, as status.lastSnapshot.name tells it",
    )
}

/// A duration that is counted in years.
pub(crate) fn lifetime(_: &mut SchemaGenerator) -> Schema {
    ruled(
        32,
        "self.matches('^([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?$') && self != '' && duration(self) >= duration('10m') && duration(self) <= duration('262800h')",
        "must be a duration such as 2160h (90 days) or 87600h (10 years), with the units h, m and s in this order, from 10m to 262800h",
    )
}

/// A token that requests an action when it changes.
pub(crate) fn token(_: &mut SchemaGenerator) -> Schema {
    ruled(
        63,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._:-]*$')",
        "must be letters, digits and . _ : -, beginning with a letter or digit, such as 2026-11-15",
    )
}

/// Values of an extension, which the schema of the extension defines.
pub(crate) fn values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Name of a workload, with or without its namespace.
pub(crate) fn workload(_: &mut SchemaGenerator) -> Schema {
    ruled(
        317,
        "self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "must be a namespace and a name, such as kube-system/coredns, or a name",
    )
}

const WORKLOADS: [&str; 4] = ["deployment", "daemonSet", "statefulSet", "job"];

fn checks(placement: &str, of_each: impl Fn(&str) -> String, also: &str) -> String {
    let each = WORKLOADS.map(|kind| format!("(!has(check.{kind}) || {})", of_each(kind))).join(" && ");
    format!(
        "self.placement != '{placement}' || !has(self.health.checks) || self.health.checks.all(check, {each}{also})"
    )
}

/// Checks that workloads in the business cluster are named with their namespace.
pub(crate) fn checks_in_cluster() -> String {
    checks("Cluster", |kind| format!("check.{kind}.contains('/')"), "")
}

/// Checks that workloads in the meta cluster are named without a namespace.
pub(crate) fn checks_in_meta() -> String {
    checks("Meta", |kind| format!("!check.{kind}.contains('/')"), " && !has(check.apiService)")
}

/// Template of an extension.
/// The rule rejects expressions whose first letters cannot start an allowed name; the renderer finds the others before anything is applied.
/// See `package_text::template` for blocks that introduce their own names.
pub(crate) fn template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_TEMPLATE,
        "x-kubernetes-validations": [{
            "rule": r"self.contains('endfor') || self.contains('endmacro') || self.contains('endwith') || self.contains('endraw') || self.contains('#}') || self.contains(' set ') || !self.matches('[{]{2}-?\\s*([abd-uw-zA-Z_]|c[^l]|v[^a])')",
            "message": format!("templates of extensions know the names {} and no others: an expression begins with one of them, such as {{{{ cluster.name }}}}", templates::EXTENSION_ROOTS.join(" and ")),
        }],
    })
}
