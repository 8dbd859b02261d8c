//! The columns of each kind.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::Column;
use crate::schemas::definitions;

/// A column before its description is looked up: `core.v1.PodStatus#podIP` stands for that field's own description.
#[derive(Clone, Copy)]
struct Spec {
    name: &'static str,
    ty: &'static str,
    format: &'static str,
    priority: i32,
    description: &'static str,
}

const fn column(name: &'static str, ty: &'static str, description: &'static str) -> Spec {
    Spec { name, ty, format: "", priority: 0, description }
}

const fn wide(name: &'static str, ty: &'static str, description: &'static str) -> Spec {
    Spec { name, ty, format: "", priority: 1, description }
}

impl Spec {
    const fn named(mut self) -> Self {
        self.format = "name";
        self
    }

    fn resolve(self) -> Column {
        let description = match self.description.split_once('#') {
            Some((ty, field)) if !ty.contains(' ') => Cow::Owned(field_description(ty, field)),
            _ => Cow::Borrowed(self.description),
        };
        Column { name: self.name, ty: self.ty, format: self.format, description, priority: self.priority }
    }
}

/// The description of a field, without the list of its values.
fn field_description(ty: &str, field: &str) -> String {
    let package = if ty.starts_with("meta.") { "io.k8s.apimachinery.pkg.apis" } else { "io.k8s.api" };
    let found = definitions()
        .get(&format!("{package}.{ty}"))
        .and_then(|ty| ty.get("properties")?.get(field)?.get("description"));
    let text = found.and_then(Value::as_str).unwrap_or_default();
    text.split("\n\nPossible enum values").next().unwrap_or_default().to_owned()
}

/// The columns of a type; its name and when it was made, if it has none of its own.
pub(super) fn of_type(type_name: &str) -> &'static [Column] {
    static COLUMNS: LazyLock<HashMap<&str, Vec<Column>>> = LazyLock::new(|| {
        let resolve = |specs: &[Spec]| specs.iter().map(|spec| spec.resolve()).collect();
        TABLE.iter().map(|(name, specs)| (*name, resolve(specs))).collect()
    });
    static DEFAULT: LazyLock<[Column; 2]> = LazyLock::new(|| [NAME.resolve(), CREATED.resolve()]);
    let type_name = if type_name == "io.k8s.api.events.v1.Event" { "io.k8s.api.core.v1.Event" } else { type_name };
    COLUMNS.get(type_name).map_or(DEFAULT.as_slice(), Vec::as_slice)
}

const NAME: Spec = column("Name", "string", "meta.v1.ObjectMeta#name").named();
const AGE: Spec = column("Age", "string", "meta.v1.ObjectMeta#creationTimestamp");
const CREATED: Spec = column("Created At", "date", "meta.v1.ObjectMeta#creationTimestamp");
const CONTAINERS: Spec = wide("Containers", "string", "Names of each container in the template.");
const IMAGES: Spec = wide("Images", "string", "Images referenced by each container in the template.");

static TABLE: &[(&str, &[Spec])] = &[
    ("io.k8s.api.core.v1.ConfigMap", &[NAME, column("Data", "string", "core.v1.ConfigMap#data"), AGE]),
    ("io.k8s.api.core.v1.Endpoints", &[NAME, column("Endpoints", "string", "core.v1.Endpoints#subsets"), AGE]),
    (
        "io.k8s.api.core.v1.Event",
        &[
            column("Last Seen", "string", "core.v1.Event#lastTimestamp"),
            column("Type", "string", "core.v1.Event#type"),
            column("Reason", "string", "core.v1.Event#reason"),
            column("Object", "string", "core.v1.Event#involvedObject"),
            wide("Subobject", "string", "core.v1.ObjectReference#fieldPath"),
            wide("Source", "string", "core.v1.Event#source"),
            column("Message", "string", "core.v1.Event#message"),
            wide("First Seen", "string", "core.v1.Event#firstTimestamp"),
            wide("Count", "string", "core.v1.Event#count"),
            wide("Name", "string", "meta.v1.ObjectMeta#name").named(),
        ],
    ),
    (
        "io.k8s.api.core.v1.ResourceQuota",
        &[
            NAME,
            column(
                "Request",
                "string",
                "Request represents a minimum amount of cpu/memory that a container may consume.",
            ),
            column(
                "Limit",
                "string",
                "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
            ),
            AGE,
        ],
    ),
    ("io.k8s.api.core.v1.Namespace", &[NAME, column("Status", "string", "The status of the namespace"), AGE]),
    (
        "io.k8s.api.core.v1.Node",
        &[
            NAME,
            column("Status", "string", "The status of the node"),
            column("Roles", "string", "The roles of the node"),
            AGE,
            column("Version", "string", "core.v1.NodeSystemInfo#kubeletVersion"),
            wide("Internal-IP", "string", "core.v1.NodeStatus#addresses"),
            wide("External-IP", "string", "core.v1.NodeStatus#addresses"),
            wide("OS-Image", "string", "core.v1.NodeSystemInfo#osImage"),
            wide("Kernel-Version", "string", "core.v1.NodeSystemInfo#kernelVersion"),
            wide("Container-Runtime", "string", "core.v1.NodeSystemInfo#containerRuntimeVersion"),
        ],
    ),
    (
        "io.k8s.api.core.v1.PersistentVolume",
        &[
            NAME,
            column("Capacity", "string", "core.v1.PersistentVolumeSpec#capacity"),
            column("Access Modes", "string", "core.v1.PersistentVolumeSpec#accessModes"),
            column("Reclaim Policy", "string", "core.v1.PersistentVolumeSpec#persistentVolumeReclaimPolicy"),
            column("Status", "string", "core.v1.PersistentVolumeStatus#phase"),
            column("Claim", "string", "core.v1.PersistentVolumeSpec#claimRef"),
            column("StorageClass", "string", "StorageClass of the pv"),
            column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
            column("Reason", "string", "core.v1.PersistentVolumeStatus#reason"),
            AGE,
            wide("VolumeMode", "string", "core.v1.PersistentVolumeSpec#volumeMode"),
        ],
    ),
    (
        "io.k8s.api.core.v1.PersistentVolumeClaim",
        &[
            NAME,
            column("Status", "string", "core.v1.PersistentVolumeClaimStatus#phase"),
            column("Volume", "string", "core.v1.PersistentVolumeClaimSpec#volumeName"),
            column("Capacity", "string", "core.v1.PersistentVolumeClaimStatus#capacity"),
            column("Access Modes", "string", "core.v1.PersistentVolumeClaimStatus#accessModes"),
            column("StorageClass", "string", "StorageClass of the pvc"),
            column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
            AGE,
            wide("VolumeMode", "string", "core.v1.PersistentVolumeClaimSpec#volumeMode"),
        ],
    ),
    (
        "io.k8s.api.core.v1.Pod",
        &[
            NAME,
            column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
            column("Status", "string", "The aggregate status of the containers in this pod."),
            column(
                "Restarts",
                "string",
                "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
            ),
            AGE,
            wide("IP", "string", "core.v1.PodStatus#podIP"),
            wide("Node", "string", "core.v1.PodSpec#nodeName"),
            wide("Nominated Node", "string", "core.v1.PodStatus#nominatedNodeName"),
            wide("Readiness Gates", "string", "core.v1.PodSpec#readinessGates"),
        ],
    ),
    (
        "io.k8s.api.core.v1.Secret",
        &[NAME, column("Type", "string", "core.v1.Secret#type"), column("Data", "string", "core.v1.Secret#data"), AGE],
    ),
    (
        "io.k8s.api.core.v1.Service",
        &[
            NAME,
            column("Type", "string", "core.v1.ServiceSpec#type"),
            column("Cluster-IP", "string", "core.v1.ServiceSpec#clusterIP"),
            column("External-IP", "string", "core.v1.ServiceSpec#externalIPs"),
            column("Port(s)", "string", "core.v1.ServiceSpec#ports"),
            AGE,
            wide("Selector", "string", "core.v1.ServiceSpec#selector"),
        ],
    ),
    ("io.k8s.api.core.v1.ServiceAccount", &[NAME, AGE]),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        &[
            NAME,
            column("Scope", "string", "Cluster/Namespaced"),
            column("Versions", "string", "Served versions"),
            CREATED,
            wide("Group", "string", "API group"),
            wide("Kind", "string", "CustomResource kind"),
            wide("ShortNames", "string", "Short names"),
            wide("Established", "boolean", "Established status"),
        ],
    ),
    (
        "io.k8s.api.apps.v1.ControllerRevision",
        &[
            NAME,
            column("Controller", "string", "Controller of the object"),
            column("Revision", "string", "apps.v1.ControllerRevision#revision"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.apps.v1.DaemonSet",
        &[
            NAME,
            column("Desired", "integer", "apps.v1.DaemonSetStatus#desiredNumberScheduled"),
            column("Current", "integer", "apps.v1.DaemonSetStatus#currentNumberScheduled"),
            column("Ready", "integer", "apps.v1.DaemonSetStatus#numberReady"),
            column("Up-to-date", "integer", "apps.v1.DaemonSetStatus#updatedNumberScheduled"),
            column("Available", "integer", "apps.v1.DaemonSetStatus#numberAvailable"),
            column("Node Selector", "string", "core.v1.PodSpec#nodeSelector"),
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", "string", "apps.v1.DaemonSetSpec#selector"),
        ],
    ),
    (
        "io.k8s.api.apps.v1.Deployment",
        &[
            NAME,
            column("Ready", "string", "Number of the pod with ready state"),
            column("Up-to-date", "string", "apps.v1.DeploymentStatus#updatedReplicas"),
            column("Available", "string", "apps.v1.DeploymentStatus#availableReplicas"),
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", "string", "apps.v1.DeploymentSpec#selector"),
        ],
    ),
    (
        "io.k8s.api.apps.v1.ReplicaSet",
        &[
            NAME,
            column("Desired", "integer", "apps.v1.ReplicaSetSpec#replicas"),
            column("Current", "integer", "apps.v1.ReplicaSetStatus#replicas"),
            column("Ready", "integer", "apps.v1.ReplicaSetStatus#readyReplicas"),
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", "string", "apps.v1.ReplicaSetSpec#selector"),
        ],
    ),
    (
        "io.k8s.api.apps.v1.StatefulSet",
        &[NAME, column("Ready", "string", "Number of the pod with ready state"), AGE, CONTAINERS, IMAGES],
    ),
    (
        "io.k8s.api.batch.v1.CronJob",
        &[
            NAME,
            column("Schedule", "string", "batch.v1.CronJobSpec#schedule"),
            column("Timezone", "string", "batch.v1.CronJobSpec#timeZone"),
            column("Suspend", "boolean", "batch.v1.CronJobSpec#suspend"),
            column("Active", "integer", "batch.v1.CronJobStatus#active"),
            column("Last Schedule", "string", "batch.v1.CronJobStatus#lastScheduleTime"),
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", "string", "batch.v1.JobSpec#selector"),
        ],
    ),
    (
        "io.k8s.api.batch.v1.Job",
        &[
            NAME,
            column("Status", "string", "Status of the job."),
            column("Completions", "string", "batch.v1.JobStatus#succeeded"),
            column("Duration", "string", "Time required to complete the job."),
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", "string", "batch.v1.JobSpec#selector"),
        ],
    ),
    (
        "io.k8s.api.certificates.v1.CertificateSigningRequest",
        &[
            NAME,
            AGE,
            column(
                "SignerName",
                "string",
                "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If empty, it will be defaulted:\n 1. If it's a kubelet client certificate, it is assigned\n    \"kubernetes.io/kube-apiserver-client-kubelet\".\n 2. If it's a kubelet serving certificate, it is assigned\n    \"kubernetes.io/kubelet-serving\".\n 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".\nDistribution of trust for signers happens out of band. You can select on this field using `spec.signerName`.",
            ),
            column("Requestor", "string", "Base64-encoded PKCS#10 CSR data"),
            column("RequestedDuration", "string", "certificates.v1.CertificateSigningRequestSpec#expirationSeconds"),
            column("Condition", "string", "Conditions applied to the request, such as approval or denial."),
        ],
    ),
    (
        "io.k8s.api.coordination.v1.Lease",
        &[NAME, column("Holder", "string", "coordination.v1.LeaseSpec#holderIdentity"), AGE],
    ),
    (
        "io.k8s.api.discovery.v1.EndpointSlice",
        &[
            NAME,
            column("AddressType", "string", "discovery.v1.EndpointSlice#addressType"),
            column("Ports", "string", "discovery.v1.EndpointSlice#ports"),
            column("Endpoints", "string", "discovery.v1.EndpointSlice#endpoints"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.networking.v1.Ingress",
        &[
            NAME,
            column(
                "Class",
                "string",
                "The name of the IngressClass resource that should be used for additional configuration",
            ),
            column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
            column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
            column("Ports", "string", "Ports of TLS configurations that open"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.networking.v1.IngressClass",
        &[
            NAME,
            column("Controller", "string", "Controller that is responsible for handling this class"),
            column("Parameters", "string", "A reference to a resource with additional parameters"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.networking.v1.NetworkPolicy",
        &[NAME, column("Pod-Selector", "string", "networking.v1.NetworkPolicySpec#podSelector"), AGE],
    ),
    (
        "io.k8s.api.policy.v1.PodDisruptionBudget",
        &[
            NAME,
            column("Min Available", "string", "The minimum number of pods that must be available."),
            column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
            column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
            AGE,
        ],
    ),
    (
        "io.k8s.api.rbac.v1.ClusterRoleBinding",
        &[
            NAME,
            column(
                "Role",
                "string",
                "roleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
            ),
            AGE,
            wide("Users", "string", "Users in the clusterRoleBinding"),
            wide("Groups", "string", "Groups in the clusterRoleBinding"),
            wide("ServiceAccounts", "string", "ServiceAccounts in the clusterRoleBinding"),
        ],
    ),
    (
        "io.k8s.api.rbac.v1.RoleBinding",
        &[
            NAME,
            column(
                "Role",
                "string",
                "roleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
            ),
            AGE,
            wide("Users", "string", "Users in the roleBinding"),
            wide("Groups", "string", "Groups in the roleBinding"),
            wide("ServiceAccounts", "string", "ServiceAccounts in the roleBinding"),
        ],
    ),
    (
        "io.k8s.api.scheduling.v1.PriorityClass",
        &[
            NAME,
            column("Value", "integer", "scheduling.v1.PriorityClass#value"),
            column("Global-Default", "boolean", "scheduling.v1.PriorityClass#globalDefault"),
            AGE,
            column("PreemptionPolicy", "string", "scheduling.v1.PriorityClass#preemptionPolicy"),
        ],
    ),
    (
        "io.k8s.api.storage.v1.CSIDriver",
        &[
            NAME,
            column("AttachRequired", "boolean", "storage.v1.CSIDriverSpec#attachRequired"),
            column("PodInfoOnMount", "boolean", "storage.v1.CSIDriverSpec#podInfoOnMount"),
            column("StorageCapacity", "boolean", "storage.v1.CSIDriverSpec#storageCapacity"),
            column("TokenRequests", "string", "storage.v1.CSIDriverSpec#tokenRequests"),
            column("RequiresRepublish", "boolean", "storage.v1.CSIDriverSpec#requiresRepublish"),
            column("Modes", "string", "storage.v1.CSIDriverSpec#volumeLifecycleModes"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.storage.v1.CSINode",
        &[
            NAME,
            column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.storage.v1.StorageClass",
        &[
            NAME,
            column("Provisioner", "string", "storage.v1.StorageClass#provisioner"),
            column("ReclaimPolicy", "string", "storage.v1.StorageClass#reclaimPolicy"),
            column("VolumeBindingMode", "string", "storage.v1.StorageClass#volumeBindingMode"),
            column("AllowVolumeExpansion", "string", "storage.v1.StorageClass#allowVolumeExpansion"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.storage.v1.VolumeAttachment",
        &[
            NAME,
            column("Attacher", "string", "storage.v1.VolumeAttachmentSpec#attacher").named(),
            column("PV", "string", "storage.v1.VolumeAttachmentSource#persistentVolumeName"),
            column("Node", "string", "storage.v1.VolumeAttachmentSpec#nodeName"),
            column("Attached", "boolean", "storage.v1.VolumeAttachmentStatus#attached"),
            AGE,
        ],
    ),
    (
        "io.k8s.api.autoscaling.v1.Scale",
        &[
            column("Name", "string", "meta.v1.ObjectMeta#name"),
            column("Desired", "integer", "autoscaling.v1.ScaleSpec#replicas"),
            column("Available", "integer", "autoscaling.v1.ScaleStatus#replicas"),
            AGE,
        ],
    ),
];
