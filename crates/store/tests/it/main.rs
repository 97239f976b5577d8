//! The store's tests against real databases: one conformance suite for both, and what only one of them can show.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod account_desk;
mod accounts;
mod audit;
mod billing;
mod chains;
mod client_lists;
mod clients;
mod databases;
mod firm;
mod grants;
mod idempotency;
mod invoice_ledger;
mod invoice_lists;
mod invoices;
mod keys;
mod killed;
mod ledger;
mod moving;
mod moving_firm;
mod opening;
mod people;
mod postgres_only;
mod provider;
mod samples;
mod shared_secrets;
mod spending;
mod sqlite_only;
mod sums;
mod throttles;
mod usage_reports;
mod write_coverage;

/// Runs every case on both databases, so that the list of names is the same under `sqlite::` and `postgres::`.
macro_rules! conformance_suite {
    ($($file:ident: $($case:ident)*;)*) => {
        mod sqlite {
            $($(
                #[tokio::test]
                async fn $case() {
                    crate::databases::on_a_fresh::<crate::databases::SqliteFile, _>(crate::$file::$case).await;
                }
            )*)*
        }

        mod postgres {
            $($(
                #[tokio::test]
                async fn $case() {
                    crate::databases::on_a_fresh::<crate::databases::PostgresDatabase, _>(crate::$file::$case).await;
                }
            )*)*
        }
    };
}

conformance_suite! {
    accounts:
        a_created_account_is_found_as_it_was_made
        a_second_account_of_the_same_name_is_refused
        accounts_are_listed_by_name_in_code_point_order
        changing_one_limit_leaves_the_other
        limits_reach_the_largest_count
        closing_twice_keeps_the_first_time
        an_unknown_account_is_named_in_the_error
        of_many_racing_to_one_name_one_wins;
    account_desk:
        an_accounts_whole_life_is_in_its_history_with_who_and_when
        what_is_refused_leaves_neither_a_decision_nor_a_line
        what_is_so_already_is_decided_and_adds_no_line
        a_key_that_moves_is_told_of_on_both_sides
        accounts_are_listed_with_keys_and_the_months_sums_and_last_use
        lists_of_accounts_keys_and_events_have_an_end
        of_many_setting_limits_at_once_each_tells_what_was_before_it
        a_key_is_not_attached_once_it_is_revoked_however_they_race
        no_key_is_made_on_an_account_after_it_was_closed
        raw_sql_cannot_change_or_remove_a_line_of_the_history
        hostile_labels_and_names_in_the_history_come_back_unchanged;
    keys:
        a_created_key_is_found_with_its_account
        a_key_without_an_account_has_no_owner
        an_unknown_prefix_finds_nothing
        a_second_key_of_the_same_prefix_is_refused
        a_key_for_a_closed_or_unknown_account_is_refused
        keys_are_listed_oldest_first_with_revoked_ones
        attaching_moves_the_key_to_the_account
        attaching_to_a_closed_or_unknown_account_is_refused
        attaching_a_revoked_or_unknown_key_is_refused
        revoking_twice_keeps_the_first_time
        hostile_labels_come_back_unchanged
        a_nul_in_a_label_is_an_error;
    ledger:
        a_settled_row_is_read_back_unchanged
        settling_the_same_row_twice_bills_it_once
        the_same_request_with_other_values_is_refused
        twins_in_one_batch_bill_once
        many_settling_at_once_share_commits_and_lose_nothing
        one_bad_row_does_not_spoil_its_batch
        a_cost_other_than_tokens_times_prices_is_refused
        a_row_before_1970_is_refused
        a_nul_in_a_model_is_an_error
        hostile_model_names_come_back_unchanged
        a_caller_that_goes_away_does_not_take_its_row_along
        closing_writes_what_is_queued
        usage_by_day_turns_over_at_midnight_utc
        usage_by_key_and_model_is_in_order
        usage_of_one_account_leaves_out_the_others
        usage_of_nothing_is_empty
        a_key_that_moved_is_billed_where_it_was
        a_sum_too_large_to_be_exact_is_an_error
        a_row_that_makes_its_days_sum_too_large_is_refused
        paging_visits_every_row_once_in_order
        raw_sql_cannot_change_or_remove_a_row
        raw_sql_cannot_add_a_row_that_breaks_a_rule
        raw_sql_cannot_add_a_row_without_its_place_and_hash
        a_row_that_cannot_be_read_back_names_its_request;
    chains:
        an_empty_ledger_has_no_chains
        racing_stores_make_a_chain_each_and_sums_together
        twins_and_bad_rows_leave_no_gap_in_the_chain
        a_killed_process_leaves_a_sound_chain;
    spending:
        a_cap_is_set_kept_and_removed
        an_account_without_a_cap_sets_nothing_aside
        what_is_set_aside_leaves_less_room_and_given_back_leaves_more
        settling_gives_back_what_was_set_aside_and_spends_the_true_cost
        a_cap_counts_one_account_and_one_calendar_month
        however_many_race_no_more_is_set_aside_than_the_cap
        spending_never_passes_the_cap_while_requests_come_and_go
        what_a_dead_process_had_set_aside_no_longer_counts
        a_process_that_says_it_lives_keeps_what_it_has_set_aside
        what_is_past_its_time_no_longer_counts_though_its_process_lives
        a_process_that_ends_frees_what_it_has_set_aside_at_once
        what_the_dead_leave_is_forgotten_a_little_at_a_time
        a_process_that_slept_past_its_lease_does_not_take_itself_for_dead;
    idempotency:
        a_claimed_key_is_held_until_it_is_freed
        a_key_is_an_accounts_own
        settling_keeps_the_reply_with_its_row
        hostile_texts_are_kept_unchanged
        of_many_racing_to_one_key_one_wins
        what_a_dead_process_had_claimed_can_be_claimed_again_and_is_billed_once
        a_process_that_says_it_lives_keeps_its_claims
        a_claim_that_is_gone_spoils_no_other_row
        a_freed_key_does_not_take_a_finished_reply_along
        an_expired_key_counts_as_absent
        expired_keys_are_forgotten_a_little_at_a_time
        under_one_key_at_most_one_row_whoever_dies
        kept_keys_are_paged_with_the_account_that_was_billed
        a_kept_reply_without_its_row_is_an_error;
    people:
        an_identity_is_one_person_whatever_its_address
        arriving_raises_a_role_and_never_lowers_it
        the_last_partner_stays_however_many_race
        somebody_who_was_removed_has_no_session_and_does_not_come_back
        somebody_who_is_restored_comes_back_as_they_were_but_for_their_sessions
        a_browsers_last_session_ends_when_its_next_begins
        every_change_of_somebody_is_on_record_with_its_old_and_new_value
        a_change_that_is_rejected_leaves_its_decision_and_no_change_on_record
        signing_in_and_out_and_wrong_codes_are_on_record_with_person_and_address
        somebody_new_who_comes_in_two_browsers_joins_once
        of_very_many_sessions_the_longest_unused_end
        a_short_idle_time_is_not_cut_shorter
        a_session_tells_its_owner_as_it_is_now
        a_session_ends_idle_and_old_and_lives_while_used
        sessions_are_listed_with_place_and_ended_one_by_one_or_all
        a_new_password_ends_what_its_identity_has_begun_and_nobody_elses
        a_sign_in_is_taken_once_and_in_time
        the_right_code_passes_once_and_a_late_one_never
        of_many_racing_with_one_right_code_one_passes
        wrong_codes_count_over_all_sign_ins_of_one_identity_however_many_race
        new_sign_ins_and_new_codes_give_no_new_tries
        the_owners_coming_in_gives_a_guesser_no_new_tries
        a_new_code_takes_the_place_of_the_last_and_letters_are_bounded
        a_letter_that_could_not_be_sent_leaves_the_last_code_in_force_and_counts_nowhere
        many_identities_that_claim_one_mailbox_get_no_more_tries_and_letters_for_it
        letters_to_one_identity_are_bounded_until_one_is_used_or_time_has_passed
        of_more_sign_ins_than_are_kept_the_oldest_go
        old_sign_ins_are_forgotten_a_little_at_a_time;
    provider:
        an_account_is_found_by_address_and_by_subject
        of_many_signing_up_with_one_address_one_gets_the_account
        a_provider_session_tells_whose_it_is_until_it_is_ended
        a_provider_session_ends_idle_and_old_and_lives_while_used
        a_new_password_ends_every_session_and_those_begun_with_the_old_one
        a_proof_is_found_in_time_and_taken_once_however_many_race
        a_new_code_replaces_the_last_one_of_a_proof_once
        proofs_whose_time_is_over_are_deleted
        a_proof_makes_one_account_and_ends_all_others_of_its_mailbox;
    throttles:
        racing_attempts_each_get_a_number_of_their_own_and_none_beyond_the_limit
        attempts_that_a_wrong_clock_counted_far_ahead_are_over
        attempts_expire_when_the_first_ones_time_is_over
        an_attempt_can_be_refunded_and_all_be_reset
        every_sequence_of_attempts_is_decided_as_the_model_decides;
    shared_secrets:
        the_secret_that_was_drawn_first_is_everybodys;
    grants:
        a_code_gives_one_token_and_a_replay_takes_it_back
        a_code_is_for_its_client_its_address_its_verifier_and_its_minute
        of_many_racing_with_one_code_one_wins_at_most_and_keeps_nothing
        grants_come_back_as_they_were_given
        a_consent_question_is_taken_once_and_in_time
        consents_are_remembered_for_one_person_and_one_client
        what_is_of_no_use_any_more_is_forgotten_a_little_at_a_time
        of_many_making_a_signing_key_one_succeeds
        signing_keys_are_kept_in_order_until_nobody_needs_them;
    clients:
        clients_are_numbered_from_1001_and_come_back_as_they_were_made
        a_client_for_somebody_who_was_removed_is_refused
        an_import_is_all_or_nothing_and_gives_numbers_in_order
        a_read_and_a_refusal_are_each_one_row_of_the_audit
        an_edit_is_the_next_version_and_every_earlier_one_is_kept
        an_edit_of_an_old_version_is_a_conflict_and_changes_nothing
        of_two_editors_of_one_version_one_saves_and_one_learns_what_is_now
        a_letter_is_drafted_from_the_clients_own_entries_alone_and_that_is_on_record_as_an_edit
        an_archived_client_is_kept_whole_and_listed_apart
        a_reassigned_client_is_the_new_owners_and_no_longer_the_old_ones
        many_clients_change_hands_together_or_not_at_all
        a_permit_for_a_former_owner_opens_and_changes_nothing
        a_permit_for_a_number_that_was_nobodys_does_not_open_the_client_that_has_it_now
        a_client_that_changes_hands_is_never_shown_to_its_former_owner
        entries_are_read_in_pages_newest_first_by_kind_and_put_away
        an_entry_is_edited_within_its_own_record_and_its_versions_are_kept
        a_record_has_so_many_entries_and_no_more
        a_record_tells_who_has_opened_it
        an_export_has_whole_records_of_those_that_have_not_changed_hands
        whose_clients_there_are_is_told_in_pages_and_within_what_one_may_read
        hostile_texts_about_a_client_come_back_unchanged;
    client_lists:
        clients_are_found_by_the_beginnings_of_their_words
        a_page_past_the_last_has_no_lines_but_the_total
        a_list_is_what_the_policy_allows_over_random_firms;
    audit:
        decisions_of_many_at_once_and_of_two_nodes_make_a_sound_chain_each
        the_audit_is_read_newest_first_by_who_what_and_when
        raw_sql_cannot_change_remove_or_replace_a_decision
        the_team_is_told_with_its_clients_and_sessions
        a_killed_process_leaves_every_read_that_it_told_of_in_a_sound_chain;
    invoices:
        an_invoice_is_read_back_as_it_was_issued
        what_is_not_there_is_not_found_and_the_look_is_on_record
        a_month_is_issued_from_an_hour_after_its_end_and_not_before
        without_usage_or_account_nothing_is_issued
        a_month_too_large_to_be_exact_is_named_and_not_invoiced
        numbers_have_no_gaps_however_many_issue_at_once
        numbers_and_dates_never_run_against_each_other
        of_many_issuing_one_month_one_makes_the_invoice
        a_credit_note_takes_back_a_part_or_all_that_is_left_and_no_more
        of_many_crediting_what_they_have_seen_one_makes_the_note
        a_month_that_was_credited_as_a_whole_is_open_again
        a_payment_is_noted_once_and_can_be_taken_back
        raw_sql_cannot_change_remove_or_replace_what_was_issued;
    invoice_lists:
        a_list_has_filters_pages_and_sums
        sums_tell_what_is_billed_outstanding_and_overdue
        months_to_invoice_are_listed_in_pages
        what_is_used_after_the_year_9999_is_in_its_last_month;
    invoice_ledger:
        nothing_is_settled_into_an_invoiced_month_and_nobody_else_is_held_up
        what_is_settled_while_an_invoice_is_issued_is_on_it_or_refused
        invoices_and_open_months_are_the_ledger_exactly;
    opening:
        reopening_keeps_everything
        a_newer_schema_is_refused_by_number
        a_schema_from_before_the_baseline_is_rejected
        another_programs_tables_are_left_alone
        looking_where_no_database_is_makes_none
        looking_at_a_database_that_is_there_opens_it
        looking_at_a_newer_schema_is_refused
        two_stores_on_one_database_see_each_others_writes
        many_opening_an_empty_database_at_once_all_succeed
        a_closed_store_answers_unavailable
        an_open_store_answers_a_ping;
    killed:
        a_killed_process_leaves_every_settled_row_once;
    sums:
        random_ledgers_sum_to_the_same_in_rust;
    usage_reports:
        a_months_report_equals_the_ledger_and_what_usage_gives
        reading_usage_is_on_record_and_an_unknown_account_has_none
        a_month_too_large_to_be_exact_is_an_error
        refusals_add_up_by_day_and_code
        a_peak_rises_and_never_falls_and_keeps_its_moment
        nodes_that_note_at_once_add_up;
}
