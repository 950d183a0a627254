//! PTX to the flat instructions that the interpreter runs.
