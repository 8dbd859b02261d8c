//! One leader at a time.

use std::time::Duration;

/// The lease that an operator holds while it leads.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The namespace of the Lease object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are; must differ between processes.
    pub identity: String,
    /// For how long others respect a lease that is not renewed.
    pub duration: Duration,
}
