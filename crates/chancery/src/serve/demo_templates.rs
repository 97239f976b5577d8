//! The demo firm's letter templates.

use crate::operator::Operator;
use chancery_policy::{FirmResource, ManageTemplates};
use chancery_store::{AdminStore, LetterTemplateContent};

/// Title and text. The letterhead has date and address already.
const TEMPLATES: [(&str, &str); 3] = [
    (
        "Thank you for our meeting",
        "Dear {{client.contact}},\n\nThank you for your time. We agreed on the following:\n\n\
         - \n\nPlease tell me if I have missed anything.\n\nKind regards\n\n{{me.name}}\n{{firm.name}}",
    ),
    (
        "Our answer to your question about an invoice",
        "Dear {{client.contact}},\n\nThank you for your question about our invoice. We have looked at \
         it again.\n\nKind regards\n\n{{me.name}}\n{{firm.name}}",
    ),
    (
        "Welcome to {{firm.name}}",
        "Dear {{client.contact}},\n\nWe are glad to work with \
         you. Your client number is {{client.number}}. Write to me at {{me.email}} at any time.\n\n\
         Kind regards\n\n{{me.name}}",
    ),
];

pub async fn prepare(store: &AdminStore) -> anyhow::Result<()> {
    let operator = Operator::new()?;
    for (title, text) in TEMPLATES {
        let permit = operator.authorize::<ManageTemplates>(store, FirmResource).await?;
        let content = LetterTemplateContent { title: title.parse()?, text: text.parse()? };
        store.letter_templates.create_letter_template(permit, &content).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{EntryText, EntryTitle, check_template};

    #[test]
    fn demo_templates_have_known_placeholders_only() {
        for (title, text) in TEMPLATES {
            assert!(title.parse::<EntryTitle>().is_ok() && text.parse::<EntryText>().is_ok(), "{title}");
            assert_eq!((check_template(title), check_template(text)), (Ok(()), Ok(())), "{title}");
        }
    }
}
