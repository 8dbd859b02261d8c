//! Decides which machines may be scheduled.
