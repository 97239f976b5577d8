//! `GET` and `POST /profile`: the user's own name and time zone. They are shown to colleagues, and change no access.

use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::day_and_time;
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{PersonName, PersonNameError, Profile, TimeZoneName};
use chancery_web::{Choice, Form, PostedForm, Problems, capitalize, page, text_error_message};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "profile.html")]
struct ProfilePage<'a> {
    frame: Frame<'a>,
    form: Form<ProfileInput>,
    zones: Vec<Choice>,
    /// Used if the person chooses none.
    firm_time_zone: &'a str,
    is_saved: bool,
    /// The current time, as the saved time zone shows it.
    now: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProfileInput {
    pub(crate) name: String,
    pub(crate) time_zone: String,
}

impl ProfileInput {
    fn of(profile: &Profile) -> Self {
        Self {
            name: profile.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            time_zone: profile.time_zone.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Empty values mean that the address and the firm's time zone are used.
    fn read(&self) -> Result<Profile, Problems> {
        let mut problems = Problems::default();
        let name = match self.name.trim() {
            "" => Ok(None),
            name => name.parse::<PersonName>().map(Some),
        };
        let name = name.map_err(|error| {
            let text = match error {
                PersonNameError::Text(error) => text_error_message(&error, "Enter a name"),
                PersonNameError::AtSign => "A name cannot contain “@”".to_owned(),
            };
            problems.add("name", text);
        });
        let time_zone = match self.time_zone.trim() {
            "" => Ok(None),
            zone => zone.parse::<TimeZoneName>().map(Some),
        };
        let time_zone = time_zone.map_err(|error| problems.add("time_zone", capitalize(&error.to_string())));
        match (name, time_zone) {
            (Ok(name), Ok(time_zone)) => Ok(Profile { name, time_zone }),
            _ => Err(problems),
        }
    }
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let form = Form::of(ProfileInput::of(&signed_in.person.profile));
    render(&portal, &signed_in, form, query.as_deref() == Some("done=saved"), StatusCode::OK)
}

pub(crate) async fn save(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    PostedForm(typed): PostedForm<ProfileInput>,
) -> Result<Response, PageError> {
    match typed.read() {
        Ok(profile) => {
            portal.store.people.set_profile(signed_in.person.id, &profile).await?;
            Ok(Redirect::to("/profile?done=saved").into_response())
        }
        Err(problems) => {
            let form = Form { typed, problems };
            render(&portal, &signed_in, form, false, StatusCode::UNPROCESSABLE_ENTITY)
        }
    }
}

fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Form<ProfileInput>,
    is_saved: bool,
    status: StatusCode,
) -> Result<Response, PageError> {
    let local = signed_in.local_time(portal);
    let shown = ProfilePage {
        frame: Frame::new(portal, signed_in, Section::Profile),
        zones: zones(&form.typed.time_zone),
        firm_time_zone: portal.settings.time_zone.as_str(),
        form,
        is_saved,
        now: day_and_time(local.now, &local),
    };
    Ok(page(status, &shown)?)
}

/// An old name that is not offered stays selected.
fn zones(chosen: &str) -> Vec<Choice> {
    let mut offered = TimeZoneName::offered();
    if !chosen.is_empty()
        && !offered.iter().any(|name| name == chosen)
        && chosen.parse::<TimeZoneName>().is_ok()
    {
        offered.push(chosen.to_owned());
    }
    offered
        .into_iter()
        .map(|name| Choice::new(name.clone(), name.replace('_', " "), name == chosen))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, time_zone: &str) -> Result<Profile, Problems> {
        ProfileInput { name: name.to_owned(), time_zone: time_zone.to_owned() }.read()
    }

    #[test]
    fn empty_profile_shows_the_address_and_the_firms_time_zone() {
        assert_eq!(read(" ", ""), Ok(Profile::default()));
        let profile = read(" Maya  Chen ", "europe/berlin").unwrap();
        assert_eq!(profile.name.unwrap().as_str(), "Maya Chen");
        assert_eq!(profile.time_zone.unwrap().as_str(), "Europe/Berlin");
    }

    #[test]
    fn invalid_profile_fields_are_reported_by_field() {
        let problems = read("ruth@company.com", "Mars/Olympus").unwrap_err();
        assert!(problems.of("name").is_some_and(|text| text.contains('@')), "{problems:?}");
        assert!(problems.of("time_zone").is_some_and(|text| text.contains("Europe/Berlin")), "{problems:?}");
        assert!(read(&"x".repeat(81), "").unwrap_err().of("name").is_some());
    }
}
