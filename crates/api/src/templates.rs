//! Names that templates of package versions may use. Admission rejects other names where it can, and the renderer rejects all others.
//!
//! The keys of `cluster` and of the labels differ between machines and between clusters, so they are known only when a template is rendered.

/// Allowed first names of an expression.
pub const ROOTS: [&str; 3] = ["machine", "facts", "cluster"];

/// Fields of a machine: `machine.name` and so on.
pub const MACHINE: [&str; 10] =
    ["name", "nodeName", "role", "address", "addresses", "labels", "hardware", "taints", "nodeLabels", "providerID"];

/// Facts that a host reports: `facts.os` and so on.
pub const FACTS: [&str; 5] = ["os", "kernel", "arch", "cpus", "memory"];

/// Allowed first names of an expression in the template of an extension.
pub const EXTENSION_ROOTS: [&str; 2] = ["cluster", "values"];

/// Fields of a cluster in the template of an extension: `cluster.name` and so on.
pub const CLUSTER: [&str; 16] = [
    "name",           // of the Cluster
    "fleet",          // its namespace
    "namespace",      // where its control plane runs, in the meta cluster
    "labels",         // of the Cluster
    "kubernetes",     // the version
    "packageVersion", // the name of the ClusterPackageVersion
    "server",         // where clients reach the API server
    "serverHost",     // the address or name in it
    "serverPort",     // the port in it
    "internalServer", // where pods of the meta cluster reach it
    "caBundle",       // the authorities that its certificate is checked with
    "caDigest",       // another whenever they change
    "pods",           // the network of pods
    "services",       // the network of Services
    "dnsDomain",
    "dnsAddress", // the tenth address of the network of Services
];
