//! The store's tests against real databases: one conformance suite for both, and tests specific to each.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod account_changes;
mod accounts;
mod audit;
mod authentications;
mod billing;
mod chains;
mod client_lists;
mod clients;
mod crash_recovery;
mod databases;
mod encrypted_secrets;
mod entry_search;
mod factor_resets;
mod factors;
mod firm;
mod grants;
mod idempotency;
mod invitations;
mod invoice_ledger;
mod invoice_lists;
mod invoices;
mod key_limits;
mod keys;
mod ledger;
mod ledger_model;
mod letters;
mod logs;
mod models;
mod opening;
mod outbox;
mod people;
mod postgres_only;
mod principal_changes;
mod provider;
mod record_reads;
mod sample_firm;
mod samples;
mod session_model;
mod shared_secrets;
mod spending;
mod sqlite_only;
mod throttles;
mod transfer;
mod unsaved_texts;
mod usage_reports;
mod usage_sums;
mod work;
mod write_coverage;

/// Runs every case on both databases, so that the list of names is the same under `sqlite::` and `postgres::`.
macro_rules! conformance_suite {
    ($($file:ident: $($case:ident)*;)*) => {
        mod sqlite {
            $($(
                #[tokio::test]
                async fn $case() {
                    crate::$file::$case(crate::databases::AnyDatabase::sqlite()).await;
                }
            )*)*
        }

        mod postgres {
            $($(
                #[tokio::test]
                async fn $case() {
                    crate::$file::$case(crate::databases::AnyDatabase::postgres(stringify!($file))).await;
                }
            )*)*
        }
    };
}

conformance_suite! {
    accounts:
        created_account_round_trips
        duplicate_account_name_is_rejected
        accounts_are_listed_by_name_in_code_point_order
        changing_one_limit_leaves_the_other
        limits_accept_u32_max
        closing_twice_keeps_first_closed_at
        unknown_account_error_names_it
        concurrent_creates_of_one_name_yield_one_account;
    account_changes:
        account_history_records_every_change_with_actor_and_time
        rejected_change_leaves_no_decision_and_no_event
        no_op_change_is_audited_and_adds_no_event
        moving_a_key_adds_an_event_to_both_accounts
        account_list_shows_active_keys_monthly_usage_and_last_use
        accounts_are_paged_by_name_in_both_directions
        accounts_are_counted_up_to_a_limit
        account_key_and_event_lists_are_bounded
        concurrent_limit_changes_each_record_the_previous_value
        revoked_key_is_never_attached_under_race
        closed_account_gets_no_new_key_under_race
        raw_sql_cannot_update_or_delete_account_events
        hostile_labels_and_names_round_trip_in_history;
    keys:
        created_key_is_found_with_its_account
        key_without_account_has_none
        an_unknown_prefix_finds_nothing
        duplicate_key_prefix_is_rejected
        creating_key_for_closed_or_unknown_account_is_rejected
        key_list_is_oldest_first_and_includes_revoked
        attaching_assigns_key_to_account
        attaching_to_closed_or_unknown_account_is_rejected
        attaching_revoked_or_unknown_key_is_rejected
        revoking_twice_keeps_first_revoked_at
        hostile_labels_round_trip
        nul_in_label_is_rejected;
    key_limits:
        key_limits_round_trip
        key_limits_can_be_set_kept_and_removed_with_history
        invalid_or_unchanged_key_limits_leave_no_event
        rotated_key_has_two_secrets_until_the_overlap_ends
        second_rotation_ends_a_running_overlap_only_if_requested
        secret_is_replaced_only_once
        revoked_or_unknown_key_is_not_rotated
        last_use_of_a_key_only_advances
        cap_of_a_key_and_of_its_account_both_hold
        reservations_of_a_key_count_in_its_account
        racing_reservations_exceed_neither_the_key_cap_nor_the_account_cap
        spending_of_a_key_and_its_account_never_exceeds_either_cap_under_load
        orphaned_reservations_do_not_count_against_a_key;
    ledger:
        settled_row_round_trips
        settling_the_same_row_twice_bills_it_once
        same_request_id_with_other_values_is_rejected
        duplicate_requests_in_one_batch_bill_once
        concurrent_settlements_share_commits_without_loss
        invalid_row_does_not_fail_its_batch
        cost_must_equal_tokens_times_prices
        row_before_1970_is_rejected
        nul_in_model_name_is_rejected
        hostile_model_names_round_trip
        dropped_caller_still_settles_its_row
        probe_write_leaves_nothing_behind
        close_flushes_queued_rows
        usage_days_start_at_midnight_utc
        usage_by_key_and_model_is_sorted
        usage_of_one_account_excludes_others
        usage_without_rows_is_empty
        usage_stays_with_the_account_a_key_had_then
        overflowing_sum_is_an_error
        row_that_overflows_daily_sum_is_rejected
        ledger_paging_visits_every_row_once
        raw_sql_cannot_update_or_delete_ledger_rows
        raw_sql_cannot_insert_invalid_ledger_row
        raw_sql_cannot_insert_ledger_row_without_position_and_hash
        corrupt_row_error_names_its_request;
    chains:
        an_empty_ledger_has_no_chains
        concurrent_stores_keep_own_chains_and_shared_sums
        duplicates_and_invalid_rows_leave_no_chain_gap
        killed_process_leaves_valid_chain;
    spending:
        spending_cap_can_be_set_kept_and_removed
        account_without_cap_reserves_nothing
        reserving_reduces_and_releasing_restores_available_spend
        settling_releases_reservation_and_spends_actual_cost
        cap_is_per_account_and_calendar_month
        concurrent_reservations_never_exceed_cap
        spending_never_exceeds_cap_under_load
        orphaned_reservations_do_not_count
        lease_renewal_keeps_reservations
        reservation_of_a_live_process_survives_any_clock_jump
        clean_shutdown_releases_reservations
        orphaned_reservations_are_reaped_in_batches
        process_resuming_after_lease_expiry_keeps_own_reservations;
    ledger_model:
        caps_reservations_and_ledger_agree_with_model;
    idempotency:
        claimed_key_stays_claimed_until_released
        idempotency_keys_are_per_account
        settling_stores_reply_with_row
        hostile_replies_round_trip
        concurrent_claims_of_one_key_have_one_winner
        orphaned_claim_can_be_reclaimed_and_bills_once
        lease_renewal_keeps_claims
        lost_claim_fails_only_its_own_row
        releasing_key_keeps_finished_reply
        expired_key_is_free
        expired_keys_are_deleted_in_batches
        one_key_bills_at_most_once_despite_crashes
        finished_keys_page_with_billed_account
        stored_reply_without_ledger_row_is_an_error;
    people:
        identity_maps_to_one_person_across_email_changes
        sign_in_raises_role_and_never_lowers_it
        last_partner_is_never_lost_under_race
        removed_person_has_no_sessions_and_cannot_sign_in
        restored_person_keeps_role_but_no_sessions
        new_session_ends_browsers_previous_session
        person_changes_are_audited_with_old_and_new_value
        rejected_person_change_audits_decision_without_effect
        sign_in_sign_out_and_wrong_codes_are_audited_with_ip
        concurrent_first_sign_ins_create_one_person
        least_recently_used_sessions_end_past_limit
        touch_interval_does_not_shorten_idle_timeout
        session_returns_current_person_data
        session_expires_by_idle_and_absolute_timeout
        sessions_list_with_ip_and_end_singly_or_all
        password_change_ends_only_that_identitys_sessions
        pending_sign_in_is_consumed_once_before_expiry
        correct_code_is_accepted_once_and_never_after_expiry
        concurrent_correct_codes_have_one_winner
        wrong_codes_count_per_identity_across_sign_ins
        wrong_codes_and_emails_are_bounded_in_a_day
        strangers_who_claim_a_mailbox_do_not_lock_out_its_person_for_a_day
        new_sign_ins_and_codes_do_not_reset_attempts
        owners_sign_in_does_not_reset_attackers_attempts
        new_code_replaces_previous_and_emails_are_bounded
        unsent_email_keeps_previous_code_and_is_refunded
        identities_sharing_mailbox_share_attempt_and_email_limits
        emails_per_identity_are_bounded_until_used_or_expired
        oldest_sign_ins_are_deleted_past_limit
        expired_sign_ins_are_deleted_in_batches
        removal_holds_for_the_mailbox_of_new_identities
        removal_of_a_mailbox_keeps_a_partner
        profile_round_trips_and_is_kept_at_sign_in;
    session_model:
        sessions_and_roles_agree_with_model;
    authentications:
        logout_token_ends_sessions_of_its_sid_once
        logout_token_without_sid_ends_everything_of_the_subject
        concurrent_logout_tokens_have_one_winner
        renewed_session_has_a_new_token_and_goes_on
        bound_session_needs_its_second_cookie
        directory_role_follows_up_and_down_except_last_partner
        directory_role_outranks_an_invitation
        daily_code_emails_are_bounded_even_if_codes_are_used;
    invitations:
        invitation_gives_its_role_once_at_first_sign_in
        expired_invitation_gives_no_role_and_is_deleted
        racing_first_sign_ins_use_one_invitation
        invitation_and_its_email_are_one_step_and_audited
        members_and_removed_people_cannot_be_invited
        invitation_emails_are_throttled_per_mailbox;
    factor_resets:
        factor_reset_deletes_all_factors_of_one_account
        factor_reset_ends_sessions_and_is_audited
        rejected_factor_reset_changes_nothing;
    provider:
        provider_account_is_found_by_email_and_subject
        concurrent_sign_ups_with_one_email_create_one_account
        provider_session_resolves_account_until_ended
        provider_session_expires_by_idle_and_absolute_timeout
        password_change_ends_all_provider_sessions
        continued_session_keeps_its_sid_and_applications
        ended_sessions_are_announced_once_per_application
        logout_token_is_claimed_by_one_process_until_the_claim_ends
        known_devices_are_bounded_and_end_with_the_password
        proof_is_consumed_once_before_expiry_under_race
        replacing_proof_code_succeeds_once
        expired_proofs_are_deleted
        proof_creates_one_account_and_deletes_other_proofs;
    factors:
        each_totp_step_is_accepted_once_and_never_an_older_one
        first_factor_comes_with_recovery_codes_and_the_last_takes_them
        last_factor_is_kept_when_one_is_required
        recovery_code_is_consumed_once_under_race
        passkey_use_is_recorded_once_for_each_state
        passkeys_belong_to_one_account_and_are_bounded
        ceremony_is_consumed_once_before_expiry
        pending_second_factor_ends_with_a_new_password
        expired_ceremonies_and_sign_ins_are_deleted
        changed_password_keeps_one_session
        changed_password_announces_the_sessions_that_end
        reauthentication_changes_time_and_methods_of_a_session;
    throttles:
        concurrent_attempts_never_exceed_throttle_limit
        counts_from_a_clock_far_ahead_are_ignored
        attempts_expire_one_window_after_the_first
        attempts_can_be_refunded_and_reset
        throttle_decisions_agree_with_model;
    shared_secrets:
        first_shared_secret_wins_on_all_nodes;
    encrypted_secrets:
        database_copy_contains_no_plain_secret
        secrets_round_trip_encrypted
        secret_changed_or_swapped_between_rows_is_rejected
        wrong_key_is_rejected_with_its_location
        rotation_under_load_keeps_every_secret_readable
        interrupted_rotation_can_be_resumed
        secret_that_does_not_decrypt_is_reported_and_left_by_rotation
        rotation_to_an_unknown_key_changes_nothing
        rotation_without_the_current_key_changes_nothing
        rotations_at_the_same_time_lose_no_secret
        webhooks_are_listed_without_their_secrets;
    grants:
        replayed_code_revokes_its_access_token
        code_is_bound_to_client_redirect_uri_verifier_and_expiry
        concurrent_redemptions_leave_no_valid_token
        code_of_an_ended_session_is_void
        grants_round_trip
        consent_request_is_consumed_once_before_expiry
        consents_are_per_subject_and_client
        expired_grants_are_deleted_in_batches
        concurrent_signing_key_creation_has_one_winner
        signing_keys_stay_until_published_until;
    clients:
        client_ids_start_at_1001_and_records_round_trip
        creating_client_for_removed_owner_is_rejected
        import_is_atomic_and_assigns_ids_in_order
        import_in_parts_is_written_only_with_its_end
        each_read_and_denial_adds_one_audit_row
        edit_adds_version_and_keeps_history
        edit_of_stale_version_conflicts_without_change
        concurrent_edits_yield_one_save_and_one_conflict
        draft_reads_only_own_unarchived_entries_and_audits_an_edit
        archived_client_keeps_data_and_leaves_default_list
        reassigned_client_is_readable_only_by_new_owner
        bulk_reassign_is_atomic
        permit_for_former_owner_is_invalid
        permit_for_unused_id_does_not_open_later_client
        reassign_race_never_shows_client_to_former_owner
        entries_page_newest_first_filtered_by_kind_and_archived
        entry_edits_stay_in_their_record_and_keep_versions
        entries_per_client_are_bounded
        record_lists_its_viewers
        export_contains_full_records_with_unchanged_owner
        client_owners_page_within_permitted_scope
        hostile_client_texts_round_trip;
    unsaved_texts:
        unsaved_text_belongs_to_one_person_and_form
        ended_session_replaces_text_of_its_own_form_only
        unsaved_texts_are_bounded_in_number_and_age;
    record_reads:
        record_pages_are_bounded_and_complete
        small_record_is_one_page_under_the_permit_that_holds
        records_of_many_clients_come_whole_and_in_order
        page_is_recorded_and_read_or_neither_and_long_reads_are_recorded_first
        client_reassigned_between_decision_and_page_is_not_shown
        entry_that_changes_between_pages_is_read_once;
    principal_changes:
        changed_principal_reads_no_client
        changed_principal_is_cut_off_between_pages
        changed_principal_writes_no_client
        removed_consultant_loses_their_own_clients
        changed_partner_manages_nothing
        partner_can_change_their_own_access
        partners_changing_each_other_on_two_nodes_never_deadlock
        demoted_or_removed_partner_racing_it_never_undoes_it;
    client_lists:
        search_matches_term_prefixes
        page_past_the_end_is_empty_with_total
        search_that_everything_matches_is_counted_up_to_a_limit
        many_terms_of_few_clients_are_counted_exactly
        client_list_matches_policy_on_random_firms
        equal_names_are_found_within_the_scope_only;
    entry_search:
        search_finds_entries_by_their_current_text
        search_finds_any_part_of_a_telephone_or_client_number
        one_audit_row_covers_a_search_and_its_excerpts
        excerpts_need_a_permit_for_the_record_in_the_searchs_request
        search_of_entries_equals_a_filter_over_readable_records;
    work:
        due_disputes_are_those_of_readable_clients_earliest_first
        due_disputes_are_bounded_and_the_earliest_of_all
        what_waits_needs_a_permit_for_each_client_in_the_same_request
        resolved_and_archived_disputes_are_not_due
        unsent_letters_and_viewed_clients_are_newest_first
        restored_version_is_a_new_version_with_the_old_content;
    audit:
        concurrent_decisions_on_two_nodes_form_valid_chains
        chain_stays_whole_after_rejected_steps
        chain_stays_whole_after_cancelled_steps
        moved_audit_chain_head_is_read_again
        audit_pages_newest_first_with_filters
        audit_rows_have_client_names_and_what_changed
        raw_sql_cannot_modify_audit_rows
        team_lists_client_and_session_counts
        killed_process_has_audited_every_reported_read;
    invoices:
        issued_invoice_round_trips
        missing_invoice_is_none_and_read_is_audited
        month_is_invoiceable_one_hour_after_its_end
        issuing_without_usage_or_account_is_rejected
        overflowing_month_is_rejected_by_name
        invoice_numbers_have_no_gaps_under_race
        invoice_numbers_and_dates_are_monotonic
        concurrent_issues_of_one_month_create_one_invoice
        credit_note_cannot_exceed_remaining_amount
        concurrent_credits_of_seen_amount_create_one_note
        fully_credited_month_can_be_invoiced_again
        payment_is_recorded_once_and_can_be_reverted
        raw_sql_cannot_modify_issued_invoices;
    invoice_lists:
        invoice_list_filters_pages_and_totals
        totals_split_billed_outstanding_and_overdue
        unbilled_months_are_paged
        usage_after_year_9999_counts_in_its_last_month;
    invoice_ledger:
        settling_into_invoiced_month_fails_without_blocking_others
        usage_settled_during_issue_is_invoiced_or_rejected
        invoices_and_unbilled_months_equal_ledger;
    opening:
        data_survives_reopen
        newer_schema_is_rejected_with_its_version
        a_schema_from_before_the_baseline_is_rejected
        foreign_tables_are_left_untouched
        open_existing_creates_nothing
        open_existing_opens_existing_database
        open_existing_rejects_newer_schema
        stores_on_one_database_see_each_others_writes
        concurrent_first_opens_all_succeed
        closed_store_returns_unavailable
        ping_succeeds_on_open_store;
    outbox:
        concurrent_claims_give_each_message_to_one_process
        message_is_enqueued_once_per_destination
        ended_claim_passes_the_message_on_with_the_same_id
        failed_message_is_due_again_at_its_retry_time
        finished_messages_are_deleted_and_pending_ones_stay
        messages_of_one_webhook_are_claimed_and_postponed_alone
        unsent_email_with_a_dead_code_is_deleted
        webhooks_are_bounded_audited_and_removed_with_their_messages
        racing_nodes_send_each_alert_once
        periodic_task_runs_on_one_node_at_a_time
        capped_spending_names_account_key_and_rejections
        expiring_keys_are_active_and_within_the_period;
    letters:
        letter_is_sent_once_and_cannot_be_changed_afterwards
        nothing_is_sent_if_letter_or_address_changed
        letter_templates_are_bounded_audited_and_versioned;
    logs:
        rows_are_unlogged_until_a_segment_has_them
        log_takes_an_append_only_at_its_size
        leaves_nodes_and_checkpoints_round_trip
        raw_sql_cannot_change_merkle_logs;
    crash_recovery:
        killed_process_keeps_each_settled_row_once;
    usage_sums:
        sql_sums_match_rust_on_random_ledgers;
    usage_reports:
        monthly_report_equals_ledger_and_usage_query
        reading_usage_is_audited_and_unknown_account_is_rejected
        overflowing_month_is_an_error
        rejections_sum_by_day_and_code
        daily_peak_only_rises_and_keeps_its_time
        concurrent_activity_from_nodes_adds_up;
}
