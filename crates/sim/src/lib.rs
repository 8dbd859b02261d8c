//! Simulated machines: hosts in memory behind the real operator, and their kubelets.
