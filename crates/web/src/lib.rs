//! What the pages of the portal and of the identity provider have in common: the look, the headers, the cross-origin
//! rule, cookies, and refusals in one voice. It knows no page of either.

mod bar;
mod body;
mod boundary;
mod client_address;
mod cookies;
mod favicon;
mod page;
mod problems;
mod refusal;
mod same_origin;
mod security_headers;
mod stylesheet;
mod trusted_proxies;
mod typed;

pub use bar::Bars;
pub use boundary::{Surroundings, surround};
pub use cookies::{Cookie, SentCookie, sent_cookie, sent_cookies};
pub use favicon::FAVICON_PATH;
pub use page::page;
pub use problems::{Problem, Problems};
pub use refusal::{Refusal, WayOn, wants_json};
pub use stylesheet::STYLESHEET_PATH;
pub use trusted_proxies::{ProxyNetwork, ProxyNetworkError, TrustedProxies};
pub use typed::TypedField;
