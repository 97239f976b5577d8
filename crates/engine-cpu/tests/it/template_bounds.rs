//! Chat templates that grow without end: they are rejected before they take the machine's memory.

use chancery_domain::SystemClock;
use chancery_engine::{Engine, EngineError, Turn};
use chancery_engine_cpu::{CpuEngine, LoadError, LoadOptions};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempPath;

const KEY: &[u8] = b"tokenizer.chat_template";
/// The value's type and length, between the key and the text.
const VALUE_HEADER_BYTES: usize = 12;
/// Of a file's tensors.
const ALIGNMENT: usize = 32;

fn fixture() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/architectures/qwen2-yarn.gguf"].iter().collect()
}

/// The fixture with another template. A comment fills it up, so that the tensors after it stay aligned.
fn model_with_template(template: &str) -> TempPath {
    let mut bytes = std::fs::read(fixture()).unwrap();
    let key = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap();
    let start = key + KEY.len() + VALUE_HEADER_BYTES;
    let len = u64::from_le_bytes(bytes[start - 8..start].try_into().unwrap()) as usize;
    let shortest = template.len() + "{##}".len();
    let padding = ".".repeat((len + shortest.next_multiple_of(ALIGNMENT) - shortest) % ALIGNMENT);
    let filled = format!("{template}{{#{padding}#}}");
    let value = (filled.len() as u64).to_le_bytes().into_iter().chain(filled.into_bytes());
    drop(bytes.splice(start - 8..start + len, value));
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    std::fs::write(&file, bytes).unwrap();
    file
}

pub fn load(template: &str) -> Result<CpuEngine, LoadError> {
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    CpuEngine::load(&model_with_template(template), &options, Arc::new(SystemClock))
}

const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
const TOO_MUCH_MEMORY: &str = "chat template needs more than 64 MiB of memory";

/// Tests that leave threads behind run one after the other, because one of them counts those threads.
pub fn lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies an expression to the text `ns.s` again and again.
fn repeated(expression: &str) -> String {
    format!(
        "{{% set ns = namespace(s='xxxxxxxx') %}}{{% for i in range(60) %}}\
         {{% set ns.s = {expression} %}}{{% endfor %}}{PLAIN}"
    )
}

#[test]
fn template_whose_values_grow_without_end_is_rejected() {
    let _guard = lock();
    let nested =
        "{% set ns = namespace(s=['x']) %}{% for i in range(50) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}";
    let long_text = ".".repeat(1_000);
    let many = |body: &str| {
        format!("{{% for i in range(999) %}}{{% for j in range(999) %}}{body}{{% endfor %}}{{% endfor %}}")
    };
    let templates = [
        repeated("ns.s ~ ns.s"),
        repeated("ns.s + ns.s"),
        repeated("ns.s * 2"),
        repeated("ns.s | replace('x', 'xxxx')"),
        repeated("ns.s.replace('x', 'xxxx')"),
        repeated("[ns.s, ns.s] | join"),
        repeated("''.join([ns.s, ns.s])"),
        repeated("(ns.s ~ ns.s) | upper"),
        format!("{nested}{{% set s = ns.s | tojson %}}{PLAIN}"),
        format!("{nested}{{% set s = ns.s | string %}}{PLAIN}"),
        format!("{{% set s = ([0] * 9999999) | list %}}{PLAIN}"),
        // The compiler evaluates it.
        format!("{{% set s = 'x' * 99999999 %}}{PLAIN}"),
        format!("{{% set s %}}{}{{% endset %}}{PLAIN}", many(&long_text)),
        format!("{{% macro m() %}}{}{{% endmacro %}}{{% set s = m() %}}{PLAIN}", many(&long_text)),
        format!("{}{PLAIN}", many(&long_text)),
    ];
    for template in templates {
        let error = load(&template).err().unwrap_or_else(|| panic!("it is accepted: {template}")).to_string();
        assert!(error.contains(TOO_MUCH_MEMORY), "{error}: {template}");
    }
}

#[test]
fn template_with_a_value_that_contains_itself_is_rejected() {
    let _guard = lock();
    let cycle = "{% set ns = namespace() %}{% set ns.a = ns %}";
    for printed in ["{% set s = ns | string %}", "{% set s = ns ~ '' %}", "{{ ns }}"] {
        let error = load(&format!("{cycle}{printed}{PLAIN}")).unwrap_err().to_string();
        assert!(error.contains("chat template has values that are nested without end"), "{error}: {printed}");
    }
    // It is not freed after a prompt, so a server would run out of memory one conversation at a time.
    for doublings in [12, 19] {
        let large =
            format!("{{% for i in range({doublings}) %}}{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}");
        let leak = format!("{{% set ns = namespace(s='xxxxxxxx') %}}{large}{{% set ns.a = ns %}}{PLAIN}");
        let error = load(&leak).unwrap_err().to_string();
        assert!(error.contains("bytes of memory after each prompt"), "{error}");
    }
}

/// Threads of templates that were stopped. Those that render now are gone within the samples.
fn stopped_threads() -> usize {
    let is_template = |task: &std::io::Result<std::fs::DirEntry>| {
        let name = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "chat-template")
    };
    let samples = (0..50).map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter(is_template).count()
    });
    samples.min().unwrap()
}

#[test]
fn template_that_grows_only_in_long_conversations_is_not_tried_twice() {
    let _guard = lock();
    let grows = repeated("ns.s ~ ns.s if messages | length > 2 else ns.s");
    let engine = load(&grows).unwrap();
    let pair = Turn::from_instructions_and_input("Be brief.", "Hello");
    let three = [Turn::user("Hello"), Turn::assistant("Hi"), Turn::user("How are you?")];
    let threads_before = stopped_threads();
    let check = || match engine.prepare(&three) {
        Err(EngineError::Failed(why)) => assert!(why.contains(TOO_MUCH_MEMORY), "{why}"),
        other => panic!("not rejected: {other:?}"),
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(check);
        }
    });
    for _ in 0..20 {
        check();
        assert!(engine.prepare(&pair).is_ok(), "the usual prompt is rendered once, when the model loads");
        assert!(engine.prepare(&three[..1]).is_ok(), "a long conversation does not end short ones");
    }
    assert_eq!(stopped_threads(), threads_before + 1, "requests at the same time leave one thread");
}

#[test]
fn ordinary_templates_are_far_below_the_bounds() {
    let engine = load(PLAIN).unwrap();
    let turns: Vec<Turn> = (0..chancery_engine::MAX_TURNS).map(|_| Turn::user("a")).collect();
    // The prompt exceeds the small model's context or fits it; either way the template was rendered.
    match engine.prepare(&turns) {
        Ok(_) | Err(EngineError::InputTooLong { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
