//! Which object is looked at next.
