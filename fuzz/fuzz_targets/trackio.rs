#![no_main]

#[allow(dead_code)]
#[path = "../functions.rs"]
mod functions;

libfuzzer_sys::fuzz_target!(|data: &[u8]| functions::trackio(data));
