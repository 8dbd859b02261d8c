//! Acts that must not happen twice.
