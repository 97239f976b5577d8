//! What the panel says about the model: its name, its size, what to expect, and what the server is doing about a better one.

use super::model_offer::ModelOffer;

const MILLION: u64 = 1_000_000;
const BILLION: u64 = 1_000_000_000;

/// The text below the panel's heading. `None` if there is nothing to say.
///
/// `state_text` is what the server says about its drafting model, such as that it is being fetched. It comes first.
pub(super) fn model_notice(model_offer: Option<&ModelOffer>, state_text: Option<&str>) -> Option<String> {
    let offer_text = model_offer.map(|model_offer| {
        let tuning = model_offer.size().tuning();
        let ModelOffer { model, parameters, .. } = model_offer;
        match parameters {
            Some(parameters) => {
                let (name, size) = (tuning.name, parameters_text(*parameters));
                format!("Model: {model}, a {name} ({size} parameters). {}", tuning.expectation)
            }
            None => format!("Model: {model}. {}", tuning.expectation),
        }
    });
    let texts: Vec<&str> = state_text.into_iter().chain(offer_text.as_deref()).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

/// `135 million`, `1.5 billion`
fn parameters_text(parameters: u64) -> String {
    match parameters {
        ..MILLION => "fewer than 1 million".to_owned(),
        MILLION..BILLION => format!("{} million", (parameters + MILLION / 2) / MILLION),
        _ => {
            let tenths = parameters / (BILLION / 10);
            format!("{}.{} billion", tenths / 10, tenths % 10)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Currency, Prices};

    fn model_offer(model: &str, parameters: Option<u64>) -> ModelOffer {
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        ModelOffer {
            model: model.to_owned(),
            parameters,
            context_tokens: 8_192,
            currency: Currency::USD,
            prices,
        }
    }

    #[test]
    fn notice_names_the_model_its_size_and_what_to_expect() {
        for (offer, text) in [
            (
                model_offer("smollm2-135m", Some(134_515_008)),
                "Model: smollm2-135m, a very small model (135 million parameters). \
                 Expect rough text with mistakes. Check every sentence.",
            ),
            (
                model_offer("qwen2.5-coder-1.5b", Some(1_543_714_304)),
                "Model: qwen2.5-coder-1.5b, a medium-sized model (1.5 billion parameters). \
                 Expect a usable letter. Check names, dates and amounts.",
            ),
            (model_offer("elsewhere", None), "Model: elsewhere. Check names, dates and amounts."),
        ] {
            assert_eq!(model_notice(Some(&offer), None).as_deref(), Some(text));
        }
    }

    #[test]
    fn state_of_the_server_comes_first() {
        let state = Some("A better model is being fetched: 40 %.");
        assert_eq!(model_notice(None, state).as_deref(), state);
        let offer = model_offer("elsewhere", None);
        let both = model_notice(Some(&offer), state).unwrap();
        assert!(both.starts_with("A better model is being fetched: 40 %. Model: elsewhere."), "{both}");
        assert_eq!(model_notice(None, None), None);
    }
}
