//! Fuzz target of the event stream parser. Events do not depend on where the network cuts the bytes, and stay within the limit.

use crate::{EventError, EventReader};
use chancery_test_support::Fuzz;

/// Small, so that inputs exceed it.
const MAX_EVENT_BYTES: usize = 256;

type Outcome = (Vec<(String, String)>, Option<EventError>);

/// The events until the first error, and that error.
fn read<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut reader = EventReader::new(MAX_EVENT_BYTES);
    let mut events = Vec::new();
    for chunk in chunks {
        let read = reader.read(chunk, |name, data| {
            events.push((name.to_owned(), data.to_owned()));
            Ok::<_, EventError>(())
        });
        if let Err(error) = read {
            return (events, Some(error));
        }
    }
    (events, None)
}

#[test]
fn event_streams() {
    let seeds = [
        ": hello\n\nevent: response.output_text.delta\ndata: {\"delta\":\"ä\"}\n\n: keep-alive\n\n",
        "event: two\r\ndata: a\r\ndata:b\r\n\r\ndata: nameless\n\nevent: without data\n\ndata: [DONE]\n\nevent: cut\ndata: off\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\nid: 7\nretry: 5\ndata\ndata:\n\n",
    ];
    let fuzz = Fuzz {
        name: "event_streams",
        crate_folder: env!("CARGO_MANIFEST_DIR"),
        seeds: seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
        tokens: &["data:", "data: ", "event: ", "\n\n", "\r\n\r\n", ": comment\n", "id: 1\n", "\r"],
        iterations: 2_000,
    };
    fuzz.run(|bytes| {
        let whole = read(std::iter::once(bytes));
        for (name, data) in &whole.0 {
            assert!(
                name.len() + data.len() <= MAX_EVENT_BYTES,
                "an event of {} bytes",
                name.len() + data.len()
            );
        }
        for size in [1, 7, 64] {
            assert_eq!(read(bytes.chunks(size)), whole, "in chunks of {size} bytes");
        }
    });
}
