//! What tests operators: crashes at every call, seeded trouble, two leaders, counted calls.
