//! The names that templates of package versions may use. Admission refuses others where it can; the renderer knows no others.
//!
//! What `cluster` and the labels hold differs from machine to machine and from cluster to cluster, so it is known only when a
//! template is rendered.

/// What an expression may begin with.
pub const ROOTS: [&str; 3] = ["machine", "facts", "cluster"];

/// What is known of a machine: `machine.name` and so on.
pub const MACHINE: [&str; 10] =
    ["name", "nodeName", "role", "address", "addresses", "labels", "hardware", "taints", "nodeLabels", "providerID"];

/// What a host says of itself: `facts.os` and so on.
pub const FACTS: [&str; 5] = ["os", "kernel", "arch", "cpus", "memory"];
