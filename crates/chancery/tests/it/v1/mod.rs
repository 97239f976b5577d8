mod browsers;
mod generate;
mod keys;
mod models;
mod refusals;
mod tokens;
mod usage;
