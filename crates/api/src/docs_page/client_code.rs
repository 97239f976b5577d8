//! The examples of the page in Python and JavaScript. They read the two variables set at the top of the page, and run as
//! pasted: OpenAI's paths with its official client, the others with what the language brings along.

/// The request that an example sends.
pub(super) struct Example<'a> {
    pub(super) path: &'a str,
    pub(super) needs_key: bool,
    /// JSON, with each top-level field on a line of its own (see `sample::write`).
    pub(super) body: Option<&'a str>,
    pub(super) returns_json: bool,
}

impl Example<'_> {
    /// The method of OpenAI's clients for this path, in Python and in JavaScript.
    fn openai_method(&self) -> Option<[&'static str; 2]> {
        match self.path {
            "/v1/responses" => Some(["responses.create"; 2]),
            "/v1/responses/input_tokens" => {
                Some(["responses.input_tokens.count", "responses.inputTokens.count"])
            }
            "/v1/chat/completions" => Some(["chat.completions.create"; 2]),
            _ => None,
        }
    }
}

pub(super) fn python(example: &Example<'_>) -> String {
    if let (Some([method, _]), Some(body)) = (example.openai_method(), example.body) {
        let arguments = keyword_arguments(&python_literal(body));
        return format!(
            "import os\nfrom openai import OpenAI\n\n\
             client = OpenAI(base_url=os.environ[\"CHANCERY_URL\"] + \"/v1\", api_key=os.environ[\"CHANCERY_API_KEY\"])\n\
             reply = client.{method}({arguments})\nprint(reply.model_dump_json(indent=2))"
        );
    }
    let mut arguments = vec![format!("os.environ[\"CHANCERY_URL\"] + \"{}\"", example.path)];
    let mut headers = Vec::new();
    if example.needs_key {
        headers.push("\"Authorization\": \"Bearer \" + os.environ[\"CHANCERY_API_KEY\"]");
    }
    if let Some(body) = example.body {
        headers.push("\"Content-Type\": \"application/json\"");
        arguments.push(format!("data=json.dumps({}).encode()", indented(&python_literal(body), 4)));
    }
    if !headers.is_empty() {
        arguments.push(format!("headers={{{}}}", headers.join(", ")));
    }
    let print = if example.returns_json { "json.load(response)" } else { "response.read().decode()" };
    let modules = if example.returns_json { "json, os" } else { "os" };
    format!(
        "import {modules}, urllib.request\n\nrequest = urllib.request.Request(\n    {},\n)\n\
         with urllib.request.urlopen(request) as response:\n    print({print})",
        arguments.join(",\n    ")
    )
}

pub(super) fn javascript(example: &Example<'_>) -> String {
    if let (Some([_, method]), Some(body)) = (example.openai_method(), example.body) {
        return format!(
            "import OpenAI from \"openai\";\n\n\
             const client = new OpenAI({{\n  baseURL: process.env.CHANCERY_URL + \"/v1\",\n  apiKey: process.env.CHANCERY_API_KEY,\n}});\n\
             const reply = await client.{method}({body});\nconsole.log(reply);"
        );
    }
    let mut options = Vec::new();
    let mut headers = Vec::new();
    if example.needs_key {
        headers.push("\"Authorization\": \"Bearer \" + process.env.CHANCERY_API_KEY");
    }
    if let Some(body) = example.body {
        headers.push("\"Content-Type\": \"application/json\"");
        options.push("method: \"POST\"".to_owned());
        options.push(format!("body: JSON.stringify({})", indented(body, 2)));
    }
    if !headers.is_empty() {
        options.push(format!("headers: {{ {} }}", headers.join(", ")));
    }
    let options = match options.is_empty() {
        true => String::new(),
        false => format!(", {{\n  {},\n}}", options.join(",\n  ")),
    };
    let read = if example.returns_json { "json" } else { "text" };
    format!(
        "const response = await fetch(process.env.CHANCERY_URL + \"{}\"{options});\n\
         console.log(await response.{read}());",
        example.path
    )
}

/// Indents every line but the first.
fn indented(text: &str, spaces: usize) -> String {
    text.replace('\n', &format!("\n{}", " ".repeat(spaces)))
}

/// Rewrites the three JSON words that Python spells differently, outside of strings.
fn python_literal(json: &str) -> String {
    let mut python = String::with_capacity(json.len());
    let mut word = String::new();
    let (mut is_string, mut is_escaped) = (false, false);
    let end_word = |word: &mut String, python: &mut String| {
        python.push_str(match word.as_str() {
            "true" => "True",
            "false" => "False",
            "null" => "None",
            other => other,
        });
        word.clear();
    };
    for char in json.chars() {
        if !is_string && char.is_ascii_alphabetic() {
            word.push(char);
            continue;
        }
        end_word(&mut word, &mut python);
        is_string = match char {
            '"' if !is_escaped => !is_string,
            _ => is_string,
        };
        is_escaped = is_string && char == '\\' && !is_escaped;
        python.push(char);
    }
    end_word(&mut word, &mut python);
    python
}

/// Turns the top-level fields of a dictionary into keyword arguments: `{\n  "model": …` becomes `\n    model=…`.
fn keyword_arguments(dictionary: &str) -> String {
    let inner = dictionary.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(dictionary);
    let lines = inner.lines().map(|line| {
        let field = line.strip_prefix("  \"").and_then(|rest| rest.split_once("\": "));
        match field {
            Some((name, value)) => format!("    {name}={value}"),
            None if line.is_empty() => String::new(),
            None => format!("  {line}"),
        }
    });
    format!("{},\n", lines.collect::<Vec<_>>().join("\n").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "{\n  \"model\": \"m\",\n  \"stream\": true,\n  \"input\": \"is it \\\"true\\\"?\",\n  \"turns\": [\n    { \"name\": null }\n  ]\n}";

    #[test]
    fn python_examples_spell_json_words_as_python_does_outside_strings() {
        let literal = python_literal(BODY);
        assert!(literal.contains("\"stream\": True"), "{literal}");
        assert!(literal.contains("{ \"name\": None }"), "{literal}");
        assert!(literal.contains(r#""is it \"true\"?""#), "{literal}");
    }

    #[test]
    fn openai_examples_in_python_use_keyword_arguments() {
        let body = Some(BODY);
        let code = python(&Example { path: "/v1/responses", needs_key: true, body, returns_json: true });
        assert!(code.contains("client.responses.create(\n    model=\"m\",\n    stream=True,\n"), "{code}");
        assert!(code.contains("    turns=[\n      { \"name\": None }\n    ],\n)"), "{code}");
    }

    #[test]
    fn examples_without_a_key_or_body_send_neither() {
        let example = Example { path: "/docs", needs_key: false, body: None, returns_json: false };
        assert_eq!(
            javascript(&example),
            "const response = await fetch(process.env.CHANCERY_URL + \"/docs\");\nconsole.log(await response.text());"
        );
        let code = python(&example);
        assert!(!code.contains("headers") && code.starts_with("import os, urllib.request\n"), "{code}");
    }
}
