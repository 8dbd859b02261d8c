//! The table of built-in kinds.
//!
//! A kind is here only when the server honours it: limit ranges, webhooks and the like are absent, so that
//! nothing is accepted and then ignored.

/// The verbs of an ordinary stored resource, in the order discovery lists them.
pub const STORED: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a stored resource whose collection cannot be deleted at once (namespaces).
pub const STORED_ONE_BY_ONE: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
/// The verbs of a virtual resource that only answers what it is sent (reviews, bindings).
pub const CREATE: &[&str] = &["create"];
/// The verbs of a subresource that shows and changes a part of its parent.
pub const PART: &[&str] = &["get", "patch", "update"];
/// The verbs of a subresource that is only written whole.
pub const UPDATE: &[&str] = &["update"];

/// A subresource of a built-in kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// The last segment of its path, such as `status`.
    pub name: &'static str,
    /// The group of its object, when that is not the parent's kind; empty otherwise.
    pub group: &'static str,
    /// The version of its object, when that is not the parent's kind; empty otherwise.
    pub version: &'static str,
    /// The kind of its object.
    pub kind: &'static str,
    /// The OpenAPI type of its object.
    pub type_name: &'static str,
    pub verbs: &'static [&'static str],
}

/// One built-in kind: a row of [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// The kind, such as `Pod`.
    pub kind: &'static str,
    /// The resource, such as `pods`.
    pub plural: &'static str,
    /// Short names for people (`po`).
    pub short_names: &'static [&'static str],
    /// Categories for people (`all`).
    pub categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// The verbs that discovery lists.
    pub verbs: &'static [&'static str],
    /// Its subresources, sorted by name.
    pub subresources: &'static [Subresource],
    /// The OpenAPI type, such as `io.k8s.api.core.v1.Pod`.
    pub type_name: &'static str,
    /// Whether the server keeps `metadata.generation`.
    pub has_generation: bool,
    /// Whether deleting one answers with the deleted object instead of a `Status`.
    pub returns_deleted: bool,
    /// The place in the store: kinds that are two views of one stored object share it (both kinds of events).
    pub storage: &'static str,
}

impl Kind {
    const fn namespaced(
        group: &'static str,
        kind: &'static str,
        plural: &'static str,
        type_name: &'static str,
        storage: &'static str,
    ) -> Self {
        Kind {
            group,
            version: "v1",
            kind,
            plural,
            short_names: &[],
            categories: &[],
            namespaced: true,
            verbs: STORED,
            subresources: &[],
            type_name,
            has_generation: false,
            returns_deleted: false,
            storage,
        }
    }

    const fn cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }

    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    const fn category(mut self, names: &'static [&'static str]) -> Self {
        self.categories = names;
        self
    }

    const fn subs(mut self, subresources: &'static [Subresource]) -> Self {
        self.subresources = subresources;
        self
    }

    const fn generation(mut self) -> Self {
        self.has_generation = true;
        self
    }

    const fn returns_deleted(mut self) -> Self {
        self.returns_deleted = true;
        self
    }

    const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    const fn stored_as(mut self, storage: &'static str) -> Self {
        self.storage = storage;
        self
    }

    /// The kind of a list of these, such as `PodList`.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// The singular name, such as `pod`.
    pub fn singular(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// `v1`, or `apps/v1` for a named group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether objects of this kind are kept; reviews and bindings only answer.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"list")
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

/// The row for a resource of a group and version.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// The row for a kind of a group and version.
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.group == group && k.version == version && k.kind == kind)
}

/// A row in `io.k8s.api.$package.v1`, namespaced and with all verbs unless a method changes that.
macro_rules! kind {
    ($group:literal, $package:literal, $kind:literal, $plural:literal) => {
        Kind::namespaced(
            $group,
            $kind,
            $plural,
            concat!("io.k8s.api.", $package, ".v1.", $kind),
            concat!($group, "/", $plural),
        )
    };
}

/// A subresource with its parent's kind.
macro_rules! part {
    ($package:literal, $kind:literal, $name:literal, $verbs:expr) => {
        Subresource {
            name: $name,
            group: "",
            version: "",
            kind: $kind,
            type_name: concat!("io.k8s.api.", $package, ".v1.", $kind),
            verbs: $verbs,
        }
    };
}

const SCALE: Subresource = Subresource {
    name: "scale",
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    type_name: "io.k8s.api.autoscaling.v1.Scale",
    verbs: PART,
};

const EVICTION: Subresource = Subresource {
    name: "eviction",
    group: "policy",
    version: "v1",
    kind: "Eviction",
    type_name: "io.k8s.api.policy.v1.Eviction",
    verbs: CREATE,
};

const TOKEN: Subresource = Subresource {
    name: "token",
    group: "authentication.k8s.io",
    version: "v1",
    kind: "TokenRequest",
    type_name: "io.k8s.api.authentication.v1.TokenRequest",
    verbs: CREATE,
};

/// Every built-in kind, by group in the order that `/apis` lists them, then by resource.
pub static KINDS: &[Kind] = &[
    kind!("", "core", "Binding", "bindings").verbs(CREATE),
    kind!("", "core", "ConfigMap", "configmaps").short(&["cm"]),
    kind!("", "core", "Endpoints", "endpoints").short(&["ep"]),
    kind!("", "core", "Event", "events").short(&["ev"]),
    kind!("", "core", "Namespace", "namespaces")
        .cluster()
        .short(&["ns"])
        .verbs(STORED_ONE_BY_ONE)
        .subs(&[part!("core", "Namespace", "finalize", UPDATE), part!("core", "Namespace", "status", PART)]),
    kind!("", "core", "Node", "nodes").cluster().short(&["no"]).subs(&[part!("core", "Node", "status", PART)]),
    kind!("", "core", "PersistentVolumeClaim", "persistentvolumeclaims")
        .returns_deleted()
        .short(&["pvc"])
        .subs(&[part!("core", "PersistentVolumeClaim", "status", PART)]),
    kind!("", "core", "PersistentVolume", "persistentvolumes")
        .returns_deleted()
        .cluster()
        .short(&["pv"])
        .subs(&[part!("core", "PersistentVolume", "status", PART)]),
    kind!("", "core", "Pod", "pods").returns_deleted().short(&["po"]).category(&["all"]).generation().subs(&[
        part!("core", "Binding", "binding", CREATE),
        part!("core", "Pod", "ephemeralcontainers", PART),
        EVICTION,
        part!("core", "Pod", "resize", PART),
        part!("core", "Pod", "status", PART),
    ]),
    kind!("", "core", "ResourceQuota", "resourcequotas").returns_deleted().short(&["quota"]).subs(&[part!(
        "core",
        "ResourceQuota",
        "status",
        PART
    )]),
    kind!("", "core", "Secret", "secrets"),
    kind!("", "core", "ServiceAccount", "serviceaccounts").returns_deleted().short(&["sa"]).subs(&[TOKEN]),
    kind!("", "core", "Service", "services")
        .returns_deleted()
        .short(&["svc"])
        .category(&["all"])
        .subs(&[part!("core", "Service", "status", PART)]),
    kind!("apps", "apps", "ControllerRevision", "controllerrevisions"),
    kind!("apps", "apps", "DaemonSet", "daemonsets").short(&["ds"]).category(&["all"]).generation().subs(&[part!(
        "apps",
        "DaemonSet",
        "status",
        PART
    )]),
    kind!("apps", "apps", "Deployment", "deployments")
        .short(&["deploy"])
        .category(&["all"])
        .generation()
        .subs(&[SCALE, part!("apps", "Deployment", "status", PART)]),
    kind!("apps", "apps", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .category(&["all"])
        .generation()
        .subs(&[SCALE, part!("apps", "ReplicaSet", "status", PART)]),
    kind!("apps", "apps", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .category(&["all"])
        .generation()
        .subs(&[SCALE, part!("apps", "StatefulSet", "status", PART)]),
    kind!("events.k8s.io", "events", "Event", "events").short(&["ev"]).stored_as("/events"),
    kind!("authentication.k8s.io", "authentication", "SelfSubjectReview", "selfsubjectreviews").cluster().verbs(CREATE),
    kind!("authentication.k8s.io", "authentication", "TokenReview", "tokenreviews").cluster().verbs(CREATE),
    kind!("authorization.k8s.io", "authorization", "LocalSubjectAccessReview", "localsubjectaccessreviews")
        .verbs(CREATE),
    kind!("authorization.k8s.io", "authorization", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
        .cluster()
        .verbs(CREATE),
    kind!("authorization.k8s.io", "authorization", "SelfSubjectRulesReview", "selfsubjectrulesreviews")
        .cluster()
        .verbs(CREATE),
    kind!("authorization.k8s.io", "authorization", "SubjectAccessReview", "subjectaccessreviews")
        .cluster()
        .verbs(CREATE),
    kind!("batch", "batch", "CronJob", "cronjobs")
        .short(&["cj"])
        .category(&["all"])
        .generation()
        .subs(&[part!("batch", "CronJob", "status", PART)]),
    kind!("batch", "batch", "Job", "jobs")
        .category(&["all"])
        .generation()
        .subs(&[part!("batch", "Job", "status", PART)]),
    kind!("certificates.k8s.io", "certificates", "CertificateSigningRequest", "certificatesigningrequests")
        .cluster()
        .short(&["csr"])
        .subs(&[
            part!("certificates", "CertificateSigningRequest", "approval", PART),
            part!("certificates", "CertificateSigningRequest", "status", PART),
        ]),
    kind!("networking.k8s.io", "networking", "IngressClass", "ingressclasses").cluster().generation(),
    kind!("networking.k8s.io", "networking", "Ingress", "ingresses").short(&["ing"]).generation().subs(&[part!(
        "networking",
        "Ingress",
        "status",
        PART
    )]),
    kind!("networking.k8s.io", "networking", "NetworkPolicy", "networkpolicies").short(&["netpol"]).generation(),
    kind!("policy", "policy", "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .generation()
        .subs(&[part!("policy", "PodDisruptionBudget", "status", PART)]),
    kind!("rbac.authorization.k8s.io", "rbac", "ClusterRoleBinding", "clusterrolebindings").cluster(),
    kind!("rbac.authorization.k8s.io", "rbac", "ClusterRole", "clusterroles").cluster(),
    kind!("rbac.authorization.k8s.io", "rbac", "RoleBinding", "rolebindings"),
    kind!("rbac.authorization.k8s.io", "rbac", "Role", "roles"),
    kind!("storage.k8s.io", "storage", "CSIDriver", "csidrivers").returns_deleted().cluster(),
    kind!("storage.k8s.io", "storage", "CSINode", "csinodes").returns_deleted().cluster(),
    kind!("storage.k8s.io", "storage", "StorageClass", "storageclasses").returns_deleted().cluster().short(&["sc"]),
    kind!("storage.k8s.io", "storage", "VolumeAttachment", "volumeattachments")
        .returns_deleted()
        .cluster()
        .subs(&[part!("storage", "VolumeAttachment", "status", PART)]),
    Kind::namespaced(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        CRD_TYPE,
        "apiextensions.k8s.io/customresourcedefinitions",
    )
    .cluster()
    .short(&["crd", "crds"])
    .category(&["api-extensions"])
    .generation()
    .subs(&[Subresource {
        name: "status",
        group: "",
        version: "",
        kind: "CustomResourceDefinition",
        type_name: CRD_TYPE,
        verbs: PART,
    }]),
    kind!("scheduling.k8s.io", "scheduling", "PriorityClass", "priorityclasses").cluster().short(&["pc"]).generation(),
    kind!("coordination.k8s.io", "coordination", "Lease", "leases"),
    kind!("discovery.k8s.io", "discovery", "EndpointSlice", "endpointslices").generation(),
];

const CRD_TYPE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_there_once() {
        for (i, kind) in KINDS.iter().enumerate() {
            assert!(
                !KINDS[..i].iter().any(|k| (k.group, k.plural) == (kind.group, kind.plural)),
                "{} appears twice",
                kind.plural
            );
        }
    }

    #[test]
    fn both_kinds_of_events_are_one_stored_thing() {
        let core = find("", "v1", "events").unwrap();
        let named = find("events.k8s.io", "v1", "events").unwrap();
        assert_eq!(core.storage, named.storage);
    }

    #[test]
    fn what_the_server_cannot_honour_is_absent() {
        assert!(find("", "v1", "limitranges").is_none());
        assert!(find("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations").is_none());
    }

    #[test]
    fn subresources_are_sorted_as_discovery_lists_them() {
        for kind in KINDS {
            assert!(kind.subresources.is_sorted_by_key(|sub| sub.name), "{}", kind.plural);
        }
    }
}
