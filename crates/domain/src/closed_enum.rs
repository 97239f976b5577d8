//! Enums whose values have one text each, in the database, in URLs and in replies.

/// Declares such an enum, with `ALL` in the order of declaration and `as_str`. With `error`, `FromStr` and `Display` use the
/// text as well; without, `parse` returns `None` for an unknown text.
#[macro_export]
macro_rules! closed_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $text:literal,)*
        }
        $(error $error:ident = $message:literal;)?
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant,)*
        }

        impl $name {
            $visibility const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        $crate::closed_enum! { @read $visibility $name $($error = $message)? }
    };
    (@read $visibility:vis $name:ident) => {
        impl $name {
            $visibility fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == text)
            }
        }
    };
    (@read $visibility:vis $name:ident $error:ident = $message:literal) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[error($message)]
        $visibility struct $error;

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                Self::ALL.into_iter().find(|value| value.as_str() == text).ok_or($error)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
