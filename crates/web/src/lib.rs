//! What the pages of the portal and of the identity provider have in common: the look, the headers, the cross-origin
//! rule, cookies, forms, notices, pagination, and error pages in one voice. It knows no page of either.

mod bar;
mod body;
mod boundary;
mod client_address;
mod cookies;
mod error_page;
mod favicon;
mod forms;
mod notice;
mod page;
mod pagination;
mod problems;
mod same_origin;
mod security_headers;
mod stylesheet;
mod trusted_proxies;
mod typed;

pub use bar::Bars;
pub use boundary::{Surroundings, surround};
pub use cookies::{Cookie, SentCookie, sent_cookie, sent_cookies};
pub use error_page::{ErrorPage, Link, wants_json};
pub use favicon::FAVICON_PATH;
pub use forms::{Choice, Form, Posted, address_halves};
pub use notice::Notice;
pub use page::page;
pub use pagination::{MAX_PAGE, PageLink, Pagination, page_count, parse_page};
pub use problems::{Problem, Problems, capitalized, text_problem};
pub use stylesheet::STYLESHEET_PATH;
pub use trusted_proxies::{ProxyNetwork, ProxyNetworkError, TrustedProxies};
pub use typed::TypedField;
