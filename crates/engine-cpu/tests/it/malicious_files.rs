//! The real file, corrupted: it must be rejected without a panic.

use crate::model_path;
use chancery_engine_cpu::{Gguf, ModelFileError, Tokenizer};
use std::fs::File;
use std::io::{Cursor, Read};

/// The real file's first bytes: its header and part of its first tensor.
fn header() -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(model_path()).unwrap().take(2 << 20).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Reads a file that is cut off after its first bytes but claims its true length, up to the tokenizer.
fn read(bytes: &[u8], file_len: u64) -> Result<(), ModelFileError> {
    let file = Gguf::read(Cursor::new(bytes), file_len)?;
    Tokenizer::from_metadata(file.metadata())?;
    Ok(())
}

#[test]
fn truncated_header_is_rejected() {
    let bytes = header();
    let true_len = File::open(model_path()).unwrap().metadata().unwrap().len();
    assert!(read(&bytes, true_len).is_ok());
    let header_len = 1_785_664;
    for len in (0..4_096).chain((4_096..header_len).step_by(40_009)) {
        assert!(read(&bytes[..len], len as u64).is_err(), "cut to {len}");
        assert!(read(&bytes[..len], true_len).is_err(), "cut to {len} behind the length");
    }
    assert!(read(&bytes, bytes.len() as u64).is_err(), "the tensors are missing");
}

#[test]
fn corrupted_header_never_panics() {
    let bytes = header();
    let true_len = File::open(model_path()).unwrap().metadata().unwrap().len();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..120 {
        let mut corrupted = bytes.clone();
        // Two of three rounds target the tables of keys and tensors, where counts and types are.
        let range = [0..1_200, 1_770_000..1_785_664, 0..1_785_664][round % 3].clone();
        for _ in 0..=next(6) {
            let index = range.start + next(range.len());
            corrupted[index] = next(256) as u8;
        }
        let _ = read(&corrupted, true_len);
    }
}
