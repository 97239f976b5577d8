//! What the pages of the portal and the identity provider share: styles, headers, the cross-origin rule, cookies, forms,
//! notices, pagination and error pages. It contains no page of either.

mod bar;
mod body;
mod compression;
mod cookies;
mod error_page;
mod favicon;
mod forms;
mod forwarded_for;
mod notice;
mod page;
mod page_layer;
mod pagination;
mod preserved_text;
mod problems;
mod same_origin;
mod security_headers;
mod stylesheet;
mod trusted_proxies;

pub use bar::BarRenderer;
pub use cookies::{Cookie, CookieLookup, cookie_values, find_cookie};
pub use error_page::{Confirmation, Confirmed, ErrorPage, Link, wants_json};
pub use favicon::FAVICON_PATH;
pub use forms::{Choice, Form, PostedForm, split_email};
pub use forwarded_for::apply_forwarded_for;
pub use notice::{Notice, NoticeForm};
pub use page::page;
pub use page_layer::{PageLayerConfig, with_page_layer};
pub use pagination::{MAX_PAGE, PageLink, Pagination, page_count, parse_page};
pub use preserved_text::PreservedField;
pub use problems::{Problem, Problems, capitalize, text_error_message};
pub use same_origin::Navigation;
pub use stylesheet::STYLESHEET_PATH;
pub use trusted_proxies::{ProxyNetwork, ProxyNetworkError, TrustedProxies};
