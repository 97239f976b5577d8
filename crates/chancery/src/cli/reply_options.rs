//! Options of `chancery generate` that become fields of the request. The server checks their ranges, so that there is one
//! place for them; its error names the field and the range.

use clap::Args;
use serde_json::{Value, json};

#[derive(Debug, Default, Args)]
pub struct ReplyOptions {
    /// Make a token less likely each time the reply has it: -2 to 2
    #[arg(long, value_name = "N", value_parser = finite_number, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// Make every token that the reply has less likely: -2 to 2
    #[arg(long, value_name = "N", value_parser = finite_number, allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Above 1, make every token of the prompt and the reply less likely: above 0, at most 2
    #[arg(long, value_name = "N", value_parser = finite_number)]
    pub repetition_penalty: Option<f64>,
    /// Above 0, penalise repeated sequences (DRY): 0 to 5
    #[arg(long, value_name = "N", value_parser = finite_number)]
    pub dry_multiplier: Option<f64>,
    /// How fast the DRY penalty grows with the sequence: 1 to 4
    #[arg(long, value_name = "N", value_parser = finite_number)]
    pub dry_base: Option<f64>,
    /// Shortest repeated sequence that DRY penalises, in tokens: 1 to 64
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<u32>,
    /// End a reply that only repeats itself
    #[arg(long)]
    pub stop_on_repetition: bool,
    /// Include the log probability of each token
    #[arg(long, requires = "json")]
    pub logprobs: bool,
    /// Include the N most likely tokens with each token: 0 to 20
    #[arg(long, value_name = "N", requires = "logprobs")]
    pub top_logprobs: Option<u32>,
}

impl ReplyOptions {
    /// Adds what was given to the request's body; the rest stays at the server's defaults.
    pub fn add_to(&self, body: &mut Value) {
        let numbers = [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
            ("repetition_penalty", self.repetition_penalty),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                body[name] = json!(number);
            }
        }
        for (name, count) in
            [("dry_allowed_length", self.dry_allowed_length), ("top_logprobs", self.top_logprobs)]
        {
            if let Some(count) = count {
                body[name] = json!(count);
            }
        }
        for (name, is_set) in [("stop_on_repetition", self.stop_on_repetition), ("logprobs", self.logprobs)] {
            if is_set {
                body[name] = json!(true);
            }
        }
    }
}

fn finite_number(text: &str) -> Result<f64, &'static str> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or("must be a number, such as 0.5")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestCommand {
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: ReplyOptions,
    }

    fn body(arguments: &[&str]) -> Result<Value, clap::Error> {
        let command = TestCommand::try_parse_from([&["generate"][..], arguments].concat())?;
        assert_eq!(command.json, arguments.contains(&"--json"));
        let mut body = json!({});
        command.options.add_to(&mut body);
        Ok(body)
    }

    #[test]
    fn only_given_options_become_fields_of_the_request() {
        assert_eq!(body(&[]).unwrap(), json!({}));
        let penalties =
            ["--frequency-penalty", "0.1", "--presence-penalty", "-1", "--repetition-penalty", "1.1"];
        assert_eq!(
            body(&penalties).unwrap(),
            json!({"frequency_penalty": 0.1, "presence_penalty": -1.0, "repetition_penalty": 1.1})
        );
        let dry = ["--dry-multiplier", "0.8", "--dry-base", "2", "--dry-allowed-length", "3"];
        assert_eq!(
            body(&dry).unwrap(),
            json!({"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3})
        );
        let rest = ["--json", "--stop-on-repetition", "--logprobs", "--top-logprobs", "5"];
        let expected = json!({"stop_on_repetition": true, "logprobs": true, "top_logprobs": 5});
        assert_eq!(body(&rest).unwrap(), expected);
    }

    #[test]
    fn logprobs_need_json_and_numbers_must_be_finite() {
        assert!(body(&["--logprobs"]).is_err());
        assert!(body(&["--json", "--top-logprobs", "5"]).is_err());
        for number in ["nan", "inf", "high", ""] {
            assert!(body(&["--frequency-penalty", number]).is_err(), "{number}");
        }
    }
}
