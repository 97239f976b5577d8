//! What a server means that answers with anything but a reply. Pure.

use super::chat::{RUNNING_USAGE, kind_of_error};
use super::fault::{Fault, Refusal, Trouble};
use super::limits::MAX_REASON_CHARS;
use reqwest::StatusCode;

/// Words in a refusal that say the prompt does not fit: vLLM's and SGLang's, llama-server's, and OpenAI's code for it.
const TOO_LONG: [&str; 5] = [
    "maximum context length",
    "context_length_exceeded",
    "exceed_context_size",
    "longer than the model's context",
    "input_too_long",
];

/// Words after the number of tokens that a server has counted of a prompt: vLLM's of today and of before, SGLang's.
const AFTER_PROMPT_TOKENS: [&str; 3] =
    [" input tokens", " in the messages", " tokens from the input messages"];

pub(super) fn read(status: StatusCode, retry_after_s: Option<u32>, body: &str) -> Fault {
    let trouble = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Trouble::Busy { retry_after_s },
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Trouble::TimedOut,
        // Its key, its credit, its address or its model is not what this side was told: it can be used for nothing.
        StatusCode::UNAUTHORIZED
        | StatusCode::PAYMENT_REQUIRED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND => Trouble::Broken,
        _ if TOO_LONG.iter().any(|words| body.contains(words)) => Trouble::TooLong,
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            Trouble::Refused
        }
        _ => Trouble::Broken,
    };
    let answer: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let message = [&answer["error"]["message"], &answer["message"], &answer["detail"]];
    let message = message.into_iter().find_map(serde_json::Value::as_str);
    let refusal = Refusal {
        status: status.as_u16(),
        reason: message.and_then(for_a_caller),
        prompt_tokens: prompt_tokens(body),
        names_running_usage: body.contains(RUNNING_USAGE),
    };
    let story = format!("it answered {}{}", status.as_u16(), kind_of_error(&answer["error"]));
    Fault { refusal: Some(refusal), ..Fault::new(trouble, story) }
}

/// A message on one line, within a bound. None where it has a character that sentences rarely have and addresses, paths
/// and code do: what a server says of itself is not for callers.
fn for_a_caller(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(MAX_REASON_CHARS).collect();
    let is_plain =
        |character: char| character.is_alphanumeric() || " .,:;'\"`()[]{}<>=+-_%!?*".contains(character);
    (!line.is_empty() && line.chars().all(is_plain)).then_some(line)
}

fn prompt_tokens(body: &str) -> Option<u32> {
    AFTER_PROMPT_TOKENS.iter().find_map(|words| {
        let (before, _) = body.split_once(words)?;
        let digits = before.bytes().rev().take_while(u8::is_ascii_digit).count();
        before[before.len() - digits..].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Fault {
        read(StatusCode::from_u16(status).unwrap(), None, body)
    }

    #[test]
    fn each_status_has_its_trouble() {
        for (status, trouble) in [
            (400, Trouble::Refused),
            (401, Trouble::Broken),
            (402, Trouble::Broken),
            (403, Trouble::Broken),
            (404, Trouble::Broken),
            (405, Trouble::Broken),
            (408, Trouble::TimedOut),
            (413, Trouble::Refused),
            (422, Trouble::Refused),
            (429, Trouble::Busy { retry_after_s: None }),
            (307, Trouble::Broken),
            (500, Trouble::Broken),
            (503, Trouble::Busy { retry_after_s: None }),
            (504, Trouble::TimedOut),
        ] {
            assert_eq!(refused(status, "").trouble, trouble, "{status}");
        }
    }

    #[test]
    fn what_a_server_counted_is_read_from_what_it_says() {
        for message in [
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (1234 in the messages, \
             3766 in the completion).",
            "'max_tokens' is too large: 4096. This model's maximum context length is 4096 tokens and your request has 1234 \
             input tokens (4096 > 4096 - 1234).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of \
             5000 tokens: 1234 tokens from the input messages and 3766 tokens for the completion.",
        ] {
            let fault = refused(400, &serde_json::json!({"error": {"message": message}}).to_string());
            assert_eq!(fault.trouble, Trouble::TooLong);
            assert_eq!(fault.refusal.unwrap().prompt_tokens, Some(1_234), "{message}");
        }
        assert_eq!(prompt_tokens("there are input tokens and 99999999999 input tokens"), None);
    }

    #[test]
    fn a_sentence_reaches_the_caller_and_nothing_of_the_servers_own_does() {
        let reason = |message: &str| {
            let body = serde_json::json!({"error": {"message": message}}).to_string();
            refused(400, &body).refusal.unwrap().reason
        };
        assert_eq!(
            reason("top_p must be in (0, 1],\n got 3.0.").as_deref(),
            Some("top_p must be in (0, 1], got 3.0.")
        );
        for own in ["see http://10.0.0.7:8000", "File \"/opt/vllm/x.py\"", "a@b", "", "C:\\models"] {
            assert_eq!(reason(own), None, "{own}");
        }
        assert_eq!(reason(&"x".repeat(10_000)).unwrap().len(), MAX_REASON_CHARS);
        let plain = refused(422, r#"{"detail":"no system turn, please"}"#).refusal.unwrap();
        assert_eq!(plain.reason.as_deref(), Some("no system turn, please"));
    }
}
