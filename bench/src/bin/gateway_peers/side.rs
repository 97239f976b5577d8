//! What is compared.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// The upstream without a gateway.
    #[value(skip)]
    Direct,
    /// Chancery with SQLite.
    #[value(skip)]
    Chancery,
    /// Chancery with PostgreSQL and Redis.
    #[value(skip)]
    Cluster,
    Smg,
    Litellm,
    Portkey,
    Nginx,
}

impl Side {
    /// In the order of the tables and of the chart's colours: ours first.
    pub const ALL: [Self; 7] =
        [Self::Chancery, Self::Smg, Self::Direct, Self::Cluster, Self::Litellm, Self::Portkey, Self::Nginx];

    /// A gateway that does comparable work. nginx only forwards, and the upstream alone is no gateway.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Smg | Self::Litellm | Self::Portkey)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "no gateway",
            Self::Chancery => "Chancery",
            Self::Cluster => "with PostgreSQL",
            Self::Smg => "smg",
            Self::Litellm => "LiteLLM",
            Self::Portkey => "Portkey",
            Self::Nginx => "nginx",
        })
    }
}

/// How the caller wants the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    Whole,
    Streamed,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Whole, Self::Streamed];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole replies",
            Self::Streamed => "streamed replies",
        })
    }
}
