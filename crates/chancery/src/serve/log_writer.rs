//! Writes log lines in a thread of its own, so that no request waits for whoever reads the log:
//!
//! 1. A line is formatted where it is logged and appended to a buffer in memory. If the buffer is full, because the reader of the
//!    log is stuck or too slow, the line is dropped and counted: `chancery_log_dropped_lines_total`, and a warning once there is
//!    room again.
//! 2. The thread writes what the buffer has with one call, without the secrets that URLs may have. It is woken for each line while lines are rare. In a burst it pauses
//!    between two writes, because waking it for each line would cost more than the line. Warnings and errors end the pause.
//! 3. When the server stops, it waits for the thread to write the rest, for a moment. A process that is killed loses the lines of
//!    the last pause.

use chancery_domain::mask_urls;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// About 4,000 lines: a fraction of a second of the busiest server.
const MAX_BUFFER_BYTES: usize = 1024 * 1024;
/// How long lines collect in a burst, and how soon one must follow another to belong to it.
const PAUSE: Duration = Duration::from_millis(2);
/// Lines that are written at once before a burst is one.
const BURST_WRITES: u32 = 16;
/// How long a stuck reader may delay the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Where events are logged to. Its clones share one thread.
#[derive(Clone)]
pub struct LogWriter(Arc<Shared>);

/// Writes the rest of the log when it is dropped.
pub struct FlushOnDrop(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    has_work: Condvar,
    has_ended: Condvar,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    dropped_lines: u64,
    thread: ThreadState,
    /// A warning or an error is in the buffer.
    is_urgent: bool,
    is_closing: bool,
    has_ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ThreadState {
    /// Looks at the buffer again without being woken.
    #[default]
    Awake,
    /// Waits for a line.
    Idle,
    /// Lets lines collect.
    Pausing,
}

impl State {
    fn has_no_work(&mut self) -> bool {
        self.buffer.is_empty() && !self.is_closing
    }

    fn may_pause(&mut self) -> bool {
        !self.is_urgent && !self.is_closing
    }
}

impl LogWriter {
    pub fn start(output: impl Write + Send + 'static) -> io::Result<(Self, FlushOnDrop)> {
        let shared = Shared { state: Mutex::default(), has_work: Condvar::new(), has_ended: Condvar::new() };
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("log-writer".to_owned()).spawn(move || of_thread.write_all(output))?;
        Ok((Self(Arc::clone(&shared)), FlushOnDrop(shared)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8], is_urgent: bool) {
        let mut state = self.lock();
        if state.buffer.len().saturating_add(line.len()) > MAX_BUFFER_BYTES {
            state.dropped_lines = state.dropped_lines.saturating_add(1);
            return;
        }
        state.buffer.extend_from_slice(line);
        state.is_urgent |= is_urgent;
        let wakes = match state.thread {
            ThreadState::Awake => false,
            ThreadState::Idle => true,
            ThreadState::Pausing => is_urgent,
        };
        if wakes {
            state.thread = ThreadState::Awake;
            drop(state);
            self.has_work.notify_one();
        }
    }

    fn write_all(&self, mut output: impl Write) {
        let (mut lines, mut writes) = (Vec::new(), 0);
        loop {
            let dropped_lines = {
                let mut state = self.wait_for_work(&mut writes);
                if state.buffer.is_empty() {
                    state.has_ended = true;
                    drop(state);
                    self.has_ended.notify_all();
                    return;
                }
                state.is_urgent = false;
                std::mem::swap(&mut state.buffer, &mut lines);
                std::mem::take(&mut state.dropped_lines)
            };
            let mut text = String::from_utf8_lossy(&lines);
            if text.contains("://") {
                text = mask_urls(&text).into();
            }
            // If the reader is gone or the disk is full, the lines are lost and the server keeps running.
            let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
            lines.clear();
            if dropped_lines > 0 {
                metrics::counter!("chancery_log_dropped_lines_total").increment(dropped_lines);
                tracing::warn!(dropped_lines, "the log's reader is too slow, lines were dropped");
            }
        }
    }

    /// Returns when there is something to write, or nothing more will come. `writes` counts those that followed each other soon.
    fn wait_for_work(&self, writes: &mut u32) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.has_no_work() {
            state.thread = ThreadState::Idle;
            let waited = self.has_work.wait_timeout_while(state, PAUSE, State::has_no_work);
            let (waited, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if timeout.timed_out() {
                *writes = 0;
                let waited = self.has_work.wait_while(state, State::has_no_work);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        *writes = writes.saturating_add(1);
        if *writes > BURST_WRITES && state.may_pause() {
            state.thread = ThreadState::Pausing;
            let waited = self.has_work.wait_timeout_while(state, PAUSE, State::may_pause);
            let (waited, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state = waited;
        }
        state.thread = ThreadState::Awake;
        state
    }
}

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closing = true;
        self.0.has_work.notify_one();
        drop(self.0.has_ended.wait_timeout_while(state, FLUSH_TIMEOUT, |state| !state.has_ended));
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { shared: &self.0, is_urgent: false }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { shared: &self.0, is_urgent: *metadata.level() <= Level::WARN }
    }
}

/// Takes one line with one write, as `tracing-subscriber` writes it.
pub struct LineWriter<'a> {
    shared: &'a Shared,
    is_urgent: bool,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared.add(line, self.is_urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Each write needs a message, until the sender is gone.
    struct GatedOutput {
        gate: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
        begun: Sender<()>,
    }

    impl Write for GatedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let _ = self.gate.recv();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Log {
        writer: LogWriter,
        flush: FlushOnDrop,
        gate: Sender<()>,
        begun: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    fn log() -> Log {
        let ((gate, wait), (begin, begun)) = (channel(), channel());
        let written = Arc::new(Mutex::new(Vec::new()));
        let output = GatedOutput { gate: wait, written: Arc::clone(&written), begun: begin };
        let (writer, flush) = LogWriter::start(output).unwrap();
        Log { writer, flush, gate, begun, written }
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_are_written_whole_in_order_and_before_the_process_ends() {
        let Log { writer, flush, gate, written, .. } = log();
        drop(gate);
        let mut expected = String::new();
        for number in 0..10_000 {
            let line = format!("line {number}\n");
            writer.make_writer().write_all(line.as_bytes()).unwrap();
            expected.push_str(&line);
        }
        drop(flush);
        assert_eq!(text(&written), expected);
    }

    #[test]
    fn stuck_reader_blocks_no_one_and_what_does_not_fit_is_dropped_and_counted() {
        let Log { writer, flush, gate, begun, written } = log();
        writer.make_writer().write_all(b"first\n").unwrap();
        begun.recv().unwrap();
        let line = [b'x'; 1024];
        for _ in 0..MAX_BUFFER_BYTES / line.len() + 3 {
            writer.make_writer().write_all(&line).unwrap();
        }
        {
            let state = writer.0.lock();
            assert_eq!((state.buffer.len(), state.dropped_lines), (MAX_BUFFER_BYTES, 3));
        }
        drop(gate);
        drop(flush);
        assert_eq!(written.lock().unwrap().len(), "first\n".len() + MAX_BUFFER_BYTES);
        assert_eq!(writer.0.lock().dropped_lines, 0, "they were reported");
    }

    #[test]
    fn urls_are_masked_in_every_line() {
        let Log { writer, flush, gate, written, .. } = log();
        drop(gate);
        for line in [
            "{\"a\":\"no \\\"https://u:p@host/?token=secret\\\"\"}\n",
            "\u{1b}[3ma\u{1b}[0m=https://host/?b=c\u{1b}[0m\n",
        ] {
            writer.make_writer().write_all(line.as_bytes()).unwrap();
        }
        drop(flush);
        let expected = "{\"a\":\"no \\\"https://***@host/?token=***\\\"\"}\n\u{1b}[3ma\u{1b}[0m=https://host/?b=***\u{1b}[0m\n";
        assert_eq!(text(&written), expected);
    }

    #[test]
    fn line_after_silence_is_written_at_once() {
        let Log { writer, flush, gate, begun, written } = log();
        gate.send(()).unwrap();
        writer.make_writer().write_all(b"alone\n").unwrap();
        begun.recv().unwrap();
        drop(gate);
        drop(flush);
        assert_eq!(text(&written), "alone\n");
    }
}
