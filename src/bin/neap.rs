//! The `neap` command line.

fn main() {}
