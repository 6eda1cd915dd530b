// Written by tools/generate.mjs from the server's OpenAPI document. Do not edit.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description Body of `POST /v1/images`: where the image comes from. */
        AddImage: {
            password?: string | null;
            reference: string;
            /** @constant */
            type: "registry";
            username?: string | null;
        } | {
            /** @constant */
            type: "debian";
        } | {
            /** @constant */
            type: "code_interpreter";
        } | {
            name: string;
            /** @description Id or name. */
            snapshot: string;
            /** @constant */
            type: "snapshot";
        } | {
            name: string;
            path: string;
            /** @constant */
            type: "local";
        };
        /** @description Body of `POST /v1/ssh-keys`. */
        AddSshKey: {
            /**
             * Format: uint64
             * @description Absent: until removed.
             */
            expires_in_s?: number | null;
            name: string;
            /** @description The one line of a `.pub` file: ed25519 or ECDSA. */
            public_key: string;
        };
        /** @description Who gets what is adopted. */
        AdoptQuarantined: {
            /** @description Id of an organisation; default: the caller's own. What has an owner goes back to its owner. */
            org?: string | null;
        };
        /** @description An amount of what a quota counts. */
        Amount: {
            /** Format: double */
            cpu: number;
            /** Format: uint64 */
            disk_mb: number;
            /** Format: uint64 */
            memory_mb: number;
            /** Format: uint64 */
            sandboxes: number;
        };
        /** @description Query of attach. */
        AttachQuery: {
            /**
             * Format: uint64
             * @default 0
             */
            stderr_from: number;
            /**
             * Format: uint64
             * @default 0
             */
            stdout_from: number;
        };
        /** @description An organisation's chain of audit records: where it begins, where it ends, and whether it holds. */
        AuditChain: {
            anchor_hash: string;
            /**
             * Format: uint64
             * @description The id of the last record that retention has removed, or 0.
             */
            anchor_sequence: number;
            /** @description What is wrong there. */
            broken?: string | null;
            /**
             * Format: uint64
             * @description The first record that is missing or does not follow from the one before it.
             */
            broken_at?: number | null;
            /** @description The hash of the last record. Keep it elsewhere to notice when the whole chain is written anew. */
            hash: string;
            org: string;
            /**
             * Format: uint64
             * @description The id of the last record.
             */
            sequence: number;
            /**
             * Format: uint64
             * @description Records up to this id are from before there were chains and have no hash.
             */
            unchained: number;
            /**
             * Format: uint64
             * @description Records that hold together; absent where nobody looked.
             */
            verified?: number | null;
        };
        /** @description One line of an export (`Accept: application/x-ndjson`): the chain, then its records, oldest first. */
        AuditLine: components["schemas"]["AuditChain"] | components["schemas"]["AuditRecord"];
        /** @description One mutating call: who, what, from where, and how it ended. */
        AuditRecord: {
            action: string;
            at: components["schemas"]["Timestamp"];
            detail?: string | null;
            /**
             * @description SHA-256 over the hash of the record before it and its own fields; absent in records from before
             *     there were chains.
             */
            hash?: string;
            /** Format: uint64 */
            id: number;
            /** @description Id of the key; absent when the system itself acted. */
            key?: string | null;
            request_id?: string | null;
            /** @description `ok` or the code of the error; of calls into a sandbox also `pending`, `not_done` or `unknown`. */
            result: string;
            source?: string | null;
            target?: string | null;
        };
        /** @description Snapshots of the disk taken without being asked for, when something changed. */
        AutoSnapshot: {
            /** @description Before each command. */
            before_exec?: boolean;
            /**
             * Format: uint64
             * @description At this pace while it runs.
             */
            every_s?: number | null;
            /**
             * Format: uint32
             * @description So many of the newest are kept; default: 10.
             */
            keep?: number | null;
        };
        ChangeKind: ("created" | "written" | "removed" | "renamed" | "attributes") | "ready" | "overflow";
        /** @description Body of `POST …/files/chmod`: mode, owner or both. */
        ChangeMode: {
            mode?: string | null;
            owner?: string | null;
            path: string;
            user?: string | null;
        };
        /** @description Something that keeps what code defined, from run to run. It is a process of the sandbox. */
        CodeContext: {
            cwd: string;
            /** @description The one that runs use which name none. */
            default: boolean;
            /** @description Of its process, too. */
            id: string;
            language: components["schemas"]["CodeLanguage"];
            started_at: components["schemas"]["Timestamp"];
            user: string;
        };
        /** @description How a run ended. */
        CodeEnd: {
            /** @description The context it ran in. */
            context: string;
            /** @description The context's process ended with the run, and what it kept is gone. */
            context_ended: boolean;
            /** Format: uint64 */
            duration_ms: number;
            /**
             * Format: int32
             * @description Of a shell's last command.
             */
            exit_code?: number | null;
            timed_out: boolean;
            /** @description Some output or result was too much, and is not here. */
            truncated: boolean;
        };
        /** @description What the code threw. */
        CodeError: {
            name: string;
            traceback: string;
            value: string;
        };
        /** @description One line of a live answer to a run. */
        CodeEvent: {
            context: components["schemas"]["CodeContext"];
            /** @constant */
            type: "started";
        } | {
            text: string;
            /** @constant */
            type: "stdout";
        } | {
            text: string;
            /** @constant */
            type: "stderr";
        } | {
            result: components["schemas"]["CodeOutput"];
            /** @constant */
            type: "result";
        } | {
            error: components["schemas"]["CodeError"];
            /** @constant */
            type: "error";
        } | components["schemas"]["CodeEnd"] | {
            error: components["schemas"]["ErrorDetail"];
            /** @constant */
            type: "failed";
        };
        CodeLanguage: ("python" | "javascript" | "bash") | "typescript";
        /** @description Something to show, in all the forms it has. */
        CodeOutput: {
            /** @description Media type to text, to base64 where the form is bytes (`image/png`), to JSON where it is that. */
            data: {
                [key: string]: unknown;
            };
            /** @description The value of the code's last expression. */
            main: boolean;
        };
        /** @description The one-piece answer to a run. */
        CodeResult: {
            /** @description The context it ran in. */
            context: string;
            /** @description The context's process ended with the run, and what it kept is gone. */
            context_ended: boolean;
            /** Format: uint64 */
            duration_ms: number;
            error?: components["schemas"]["CodeError"] | null;
            /**
             * Format: int32
             * @description Of a shell's last command.
             */
            exit_code?: number | null;
            results: components["schemas"]["CodeOutput"][];
            stderr: string;
            stdout: string;
            timed_out: boolean;
            /** @description Some output or result was too much, and is not here. */
            truncated: boolean;
        };
        /** @description Body of `POST …/code/contexts`. */
        CreateCodeContext: {
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @default python */
            language: components["schemas"]["CodeLanguage"];
            /** @description Name or number, with `:group` if wanted. */
            user?: string | null;
        };
        /** @description Body of `POST /v1/sandboxes/{id}/identity`. */
        CreateIdentityToken: {
            /** @description Whom the token is for, such as `sts.amazonaws.com`: the `aud` claim. */
            audience: string;
            /**
             * Format: uint64
             * @description How long the token is valid. Default: 300.
             */
            expires_s?: number | null;
        };
        /** @description Body of `POST /v1/keys`. */
        CreateKey: {
            /**
             * Format: uint64
             * @description Absent: until revoked.
             */
            expires_in_s?: number | null;
            name: string;
            /** @description For another organisation; needs the scope `admin`. */
            org?: string | null;
            scopes: components["schemas"]["Scope"][];
        };
        /** @description Body of `POST /v1/orgs`. */
        CreateOrg: {
            name: string;
            quota?: components["schemas"]["QuotaRequest"] | null;
        };
        /** @description Body of `POST /v1/sandboxes`. Everything has a default. */
        CreateSandbox: {
            env?: {
                [key: string]: string;
            };
            /** @description Lets the sandbox ask who it is, at `http://cove.internal:16910/`. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description Name or id of an image; default: `debian`. */
            image?: string | null;
            /** @description The isolation tier; default: `container`. */
            isolation?: string | null;
            labels?: {
                [key: string]: string;
            };
            lifecycle?: components["schemas"]["Lifecycle"] | null;
            /** @description With `snapshot`: go on with its processes; without, it boots from its disk. */
            memory?: boolean;
            /** @description Unique in the organisation: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
            network?: components["schemas"]["Network"] | null;
            /** @description Forbid gaining privileges through setuid programs. */
            no_new_privs?: boolean;
            resources?: components["schemas"]["ResourcesRequest"] | null;
            /**
             * @description Secrets that it may use: inside are placeholders, values are put into requests outside. Their hosts must be
             *     in `network.allow`.
             */
            secrets?: components["schemas"]["SecretGrant"][];
            /**
             * @description Name or id of a snapshot to begin from, in place of an image. Limits, user and directory that are
             *     not given are then those it was taken with, and `env` is put over its variables.
             */
            snapshot?: string | null;
            /** @description Who commands run as; default: the image's user, else root. */
            user?: string | null;
            /**
             * @description Volumes to mount. They are no part of its disk, nor of its snapshots. Absent with `snapshot`: those that the
             *     snapshot's sandbox had; `[]`: none.
             */
            volumes?: components["schemas"]["Mount"][] | null;
            /** @description Where commands start; default: the image's directory, else the user's home. */
            workdir?: string | null;
        };
        /** @description Body of `POST /v1/sandboxes/{id}/ssh`. */
        CreateSshToken: {
            /**
             * Format: uint64
             * @description How long the token is good; default: an hour. Sessions it opened end with it.
             */
            expires_s?: number | null;
            /**
             * Format: uint64
             * @description How long the token lets its holder log in, when that is less than it is good for.
             */
            login_s?: number | null;
        };
        /** @description Body of `POST /v1/volumes`. */
        CreateVolume: {
            /** @description Id or name of a volume to begin as a copy of, as it is at this moment. */
            from?: string | null;
            /** @description Unique among the organisation's volumes: 1 to 63 lowercase letters, digits or dashes. */
            name: string;
            /** @description With `from`: a copy that nobody can write to, ever. */
            read_only?: boolean;
            /**
             * Format: uint64
             * @description What it may hold. Default: 10 GiB, or the size of `from`.
             */
            size_mb?: number | null;
        };
        /** @description One decision. A connection comes again when it is over, with the bytes it carried and a new `id`. */
        EgressEntry: {
            address?: string | null;
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Grows; pass the last one seen as `after` to go on.
             */
            id: number;
            /** @description The name asked for or spoken to, where there is one. */
            name?: string | null;
            /** Format: uint16 */
            port?: number | null;
            protocol: components["schemas"]["EgressProtocol"];
            /** Format: uint64 */
            received_bytes: number;
            /** @description The entry of the policy that allowed it, or why nothing did. */
            rule: string;
            /**
             * Format: uint64
             * @description Bytes carried, once a connection is over.
             */
            sent_bytes: number;
            verdict: components["schemas"]["EgressVerdict"];
        };
        /** @description One line of a log that is followed. */
        EgressLine: components["schemas"]["EgressEntry"] | {
            /** @constant */
            type: "lost";
        };
        /** @description What is kept now. */
        EgressList: {
            items: components["schemas"]["EgressEntry"][];
            /** @description Entries after `after` were dropped before they could be read. */
            lost: boolean;
            /**
             * Format: uint64
             * @description Pass as `after` to read on.
             */
            next: number;
        };
        /** @enum {string} */
        EgressProtocol: "dns" | "tcp" | "udp" | "icmp" | "other";
        EgressQuery: {
            /**
             * Format: uint64
             * @description Begin after this entry.
             */
            after?: number | null;
            /**
             * @description Wait for more, one JSON value a line.
             * @default false
             */
            follow: boolean;
            /**
             * Format: uint32
             * @description Entries at most; default: 100.
             */
            limit?: number | null;
            /** @description Only this name and names below it. */
            name?: string | null;
            protocol?: components["schemas"]["EgressProtocol"] | null;
            verdict?: components["schemas"]["EgressVerdict"] | null;
        };
        /** @enum {string} */
        EgressVerdict: "allowed" | "denied";
        /** @enum {string} */
        Encoding: "text" | "base64";
        /** @description The body of every answer that is not a success. */
        ErrorBody: {
            error: components["schemas"]["ErrorDetail"];
        };
        /** @description Stable names of what can go wrong. Never renamed, only added to. */
        ErrorCode: ("not_found" | "method_not_allowed" | "already_exists" | "path_exists" | "not_a_directory" | "is_a_directory" | "directory_not_empty" | "payload_too_large" | "uri_too_long" | "unsupported_media_type" | "range_not_satisfiable" | "command_not_found" | "no_such_user" | "rate_limited" | "headers_too_large" | "internal" | "runner_unreachable") | "malformed_request" | "unauthenticated" | "forbidden" | "quota_exceeded" | "permission_denied" | "path_not_found" | "request_timeout" | "conflict" | "stale" | "in_use" | "not_capturable" | "unfit_host" | "unchanged" | "idempotency_key_reused" | "process_gone" | "invalid_request" | "too_many_processes" | "limit_reached" | "unsupported" | "guest_unreachable" | "port_closed" | "no_capacity" | "unavailable" | "timed_out" | "disk_full";
        ErrorDetail: {
            code: components["schemas"]["ErrorCode"];
            hint?: string | null;
            message: string;
            request_id: string;
        };
        Event: {
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Grows; pass the last one seen as `Last-Event-ID` to go on after it.
             */
            id: number;
            sandbox: string;
        } & ({
            reason?: string | null;
            state: components["schemas"]["SandboxState"];
            /** @constant */
            type: "state";
        } | {
            /** Format: uint64 */
            kills: number;
            /** Format: uint64 */
            limit_mb: number;
            /** Format: uint64 */
            peak_mb: number;
            /** @constant */
            type: "oom";
        } | {
            /** Format: uint64 */
            from_mb: number;
            /** Format: uint64 */
            to_mb: number;
            /** @constant */
            type: "memory_grown";
        } | {
            /** Format: uint64 */
            limit_mb: number;
            /** @constant */
            type: "disk_held";
        } | {
            /** @constant */
            type: "disk_released";
        } | {
            /** @constant */
            type: "resized";
        } | {
            /** @constant */
            type: "network_changed";
        } | {
            /** @constant */
            type: "adopted";
        } | {
            memory: boolean;
            snapshot: string;
            /** @constant */
            type: "snapshotted";
        } | {
            reason: string;
            /** @constant */
            type: "capture_failed";
        } | {
            kept: string;
            to: string;
            /** @constant */
            type: "rolled_back";
        });
        /** @description Query of the event streams. */
        EventsQuery: {
            /**
             * Format: uint64
             * @description Begin after this event; the header `Last-Event-ID` does the same and wins.
             */
            after?: number | null;
            /**
             * @description Wait for more. Without it, what is there now as one list.
             * @default false
             */
            follow: boolean;
        };
        /** @description Body of `POST …/exec`. Either `command` or `argv`. */
        Exec: {
            /** @description Program and arguments, run without a shell. */
            argv?: string[] | null;
            /** @description Given to the user's login shell. */
            command?: string | null;
            cwd?: string | null;
            /** @description How the one-piece answer carries output: text (what is not UTF-8 is replaced), or base64. */
            encoding?: components["schemas"]["Encoding"] | null;
            env?: {
                [key: string]: string;
            };
            /** @description End the command when this connection is lost. Otherwise it goes on and can be found again. */
            kill_on_disconnect?: boolean;
            /** @description The command's whole standard input, as text. */
            stdin?: string | null;
            /** @description The same, base64; for bytes that are not text. */
            stdin_base64?: string | null;
            /** @description Keep its input open for `POST …/stdin`; only where the answer is live. */
            stdin_open?: boolean;
            /** @description Shown in listings; does not change what runs. */
            tag?: string | null;
            /**
             * Format: uint64
             * @description At its end the command's whole process group is ended.
             */
            timeout_ms?: number | null;
            /** @description Name or number, with `:group` if wanted. */
            user?: string | null;
        };
        /** @description The one-piece answer to exec. */
        ExecResult: {
            /** Format: uint64 */
            duration_ms: number;
            encoding: components["schemas"]["Encoding"];
            /**
             * Format: int32
             * @description 128 + the signal's number when one ended it, as shells do.
             */
            exit_code: number;
            /**
             * Format: uint64
             * @description With `oom`: the sandbox's limit and peak.
             */
            memory_limit_bytes?: number | null;
            /** Format: uint64 */
            memory_peak_bytes?: number | null;
            /** @description The kernel killed it for memory. */
            oom: boolean;
            /** @description Id of the process, for its record. */
            process: string;
            /** Format: int32 */
            signal?: number | null;
            stderr: string;
            /** Format: uint64 */
            stderr_bytes: number;
            stdout: string;
            /**
             * Format: uint64
             * @description All that the command wrote, kept or not.
             */
            stdout_bytes: number;
            timed_out: boolean;
            /** @description Output was longer than the answer may be; the first part is here. */
            truncated: boolean;
        };
        /** @description How a command ended. */
        Exit: {
            /** Format: uint64 */
            duration_ms: number;
            /**
             * Format: int32
             * @description 128 + the signal's number when one ended it, as shells do.
             */
            exit_code: number;
            /**
             * Format: uint64
             * @description With `oom`: the sandbox's limit and peak.
             */
            memory_limit_bytes?: number | null;
            /** Format: uint64 */
            memory_peak_bytes?: number | null;
            /** @description The kernel killed it for memory. */
            oom: boolean;
            /** Format: int32 */
            signal?: number | null;
            /** Format: uint64 */
            stderr_bytes: number;
            /**
             * Format: uint64
             * @description All that the command wrote, kept or not.
             */
            stdout_bytes: number;
            timed_out: boolean;
        };
        /** @description One line of a watch. */
        FileChange: {
            directory?: boolean;
            from?: string | null;
            path?: string;
            type: components["schemas"]["ChangeKind"];
        };
        /** @description What is at a path. */
        FileInfo: {
            /** Format: uint32 */
            gid: number;
            group: string;
            /** @description Octal. */
            mode: string;
            modified_at: components["schemas"]["Timestamp"];
            name: string;
            owner: string;
            path: string;
            /** Format: uint64 */
            size: number;
            symlink_target?: string | null;
            type: components["schemas"]["FileKind"];
            /** Format: uint32 */
            uid: number;
        };
        /** @enum {string} */
        FileKind: "file" | "directory" | "symlink" | "socket" | "fifo" | "device" | "other";
        /** @description One line of `cove doctor`. */
        Finding: {
            fix?: string | null;
            level: components["schemas"]["Level"];
            message: string;
            name: string;
        };
        /** @description Body of `POST …/fork`; may be left out. */
        Fork: {
            /**
             * Format: uint32
             * @description Children; default: one.
             */
            count?: number | null;
            /** @description Added to the parent's. */
            labels?: {
                [key: string]: string;
            };
            /** @description The children go on with the parent's processes; without, they boot from its disk. */
            memory?: boolean;
            /** @description Of the only child; several are called `name-1`, `name-2` and so on. */
            name?: string | null;
        };
        /** @description One child of a fork, or why there is none. */
        Forked: {
            sandbox: components["schemas"]["Sandbox"];
        } | {
            error: components["schemas"]["ErrorDetail"];
        };
        /** @description What a sandbox may do to itself. */
        Grant: "snapshot" | "fork" | "keep_awake" | "label" | "end";
        /** @description Answer of `/healthz` and `/readyz`. */
        Health: {
            status: string;
            version: string;
        };
        /** @description The identity of a sandbox: with it, the metadata endpoint is there inside. */
        Identity: {
            /** @description What it may do to itself. Default: nothing. */
            grants?: components["schemas"]["Grant"][];
            /** @description For whom it acts; a claim of its tokens. Needs a key with the scope `admin`: verifiers take it for true. */
            on_behalf_of?: string | null;
            /** @description What it works on; a claim of its tokens. */
            task?: string | null;
        };
        /** @description A public key, as RFC 7517 writes it. */
        IdentityKey: {
            alg: string;
            e: string;
            kid: string;
            kty: string;
            n: string;
            use: string;
        };
        /** @description Answer of `GET /.well-known/jwks.json`: the public keys that check tokens. */
        IdentityKeys: {
            keys: components["schemas"]["IdentityKey"][];
        };
        /** @description A signed statement of which sandbox its holder is: a JWT of OpenID Connect, signed with RS256. */
        IdentityToken: {
            audience: string;
            expires_at: components["schemas"]["Timestamp"];
            /** @description The `iss` claim. Its keys are at `ISSUER/.well-known/jwks.json`. */
            issuer: string;
            /** @description The `sub` claim: the SPIFFE id of the sandbox. */
            subject: string;
            token: string;
        };
        Image: {
            created_at: components["schemas"]["Timestamp"];
            digest?: string | null;
            id: string;
            /**
             * Format: uint64
             * @description Sandboxes made from it.
             */
            in_use_by: number;
            names: string[];
            /** Format: uint64 */
            size_bytes: number;
            /** @description `registry`, `bootstrap` or `import`. */
            source: string;
        };
        /** @description An image on its way. Each line of a live answer is one of these; the last is not `running`. */
        ImageJob: {
            /** Format: uint64 */
            done_bytes: number;
            error?: components["schemas"]["JobError"] | null;
            id: string;
            image?: components["schemas"]["Image"] | null;
            name: string;
            /** @description For a person: what is done now. */
            stage: string;
            state: components["schemas"]["JobState"];
            /** Format: uint64 */
            total_bytes?: number | null;
            warnings: string[];
        };
        /** @description Query of `POST /v1/snapshots/import`. */
        ImportSnapshot: {
            name?: string | null;
        };
        /** @description What came of an import. */
        Imported: {
            /** @description Why the memory in the file was left out, when it was. */
            memory_refused?: string | null;
            snapshot: components["schemas"]["Snapshot"];
        };
        JobError: {
            code: components["schemas"]["ErrorCode"];
            message: string;
        };
        /**
         * @description How far an image on its way is.
         * @enum {string}
         */
        JobState: "running" | "done" | "failed";
        Key: {
            created_at: components["schemas"]["Timestamp"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            id: string;
            last_used_at?: components["schemas"]["Timestamp"] | null;
            name: string;
            org: string;
            revoked_at?: components["schemas"]["Timestamp"] | null;
            /** @description The key made at first start. */
            root: boolean;
            scopes: components["schemas"]["Scope"][];
        };
        /** @description How much a finding of `cove doctor` matters. */
        Level: "ok" | "warning" | "error";
        /** @description When a sandbox that nobody uses is put away; absent: never. The times must grow in this order. */
        Lifecycle: {
            /** @description Whether a request that needs it wakes it when it is frozen or paused; default: true. */
            auto_resume?: boolean | null;
            auto_snapshot?: components["schemas"]["AutoSnapshot"] | null;
            /** Format: uint64 */
            delete_after_s?: number | null;
            /**
             * Format: uint64
             * @description Its processes hold still, memory kept; it wakes within milliseconds.
             */
            freeze_after_s?: number | null;
            /**
             * Format: uint64
             * @description Counted from creation, idle or not.
             */
            max_lifetime_s?: number | null;
            /**
             * Format: uint64
             * @description Its memory goes to disk: no CPU and no memory, and it goes on where it was.
             */
            pause_after_s?: number | null;
            /**
             * Format: uint64
             * @description Its processes end, its disk is kept.
             */
            stop_after_s?: number | null;
        };
        /** @description Query of `GET …/files/list`. */
        ListFiles: {
            /**
             * Format: uint32
             * @description Default: 1 (this directory only).
             */
            depth?: number | null;
            /** Format: uint32 */
            limit?: number | null;
            path: string;
            user?: string | null;
        };
        /** @description Query of `GET /v1/sandboxes`. */
        ListSandboxes: {
            cursor?: string | null;
            /** @description `key=value` pairs with commas between; all must match. */
            labels?: string | null;
            /** Format: uint32 */
            limit?: number | null;
            name?: string | null;
            state?: components["schemas"]["SandboxState"] | null;
        };
        /** @description A directory's entries. */
        Listing: {
            items: components["schemas"]["FileInfo"][];
            /** @description There are more than the limit allows. */
            truncated: boolean;
        };
        /** @description Body of `POST …/files/mkdir`. */
        MakeDirectory: {
            mode?: string | null;
            parents?: boolean;
            path: string;
            user?: string | null;
        };
        /** @description What a sandbox uses, from the host. */
        Metrics: {
            at: components["schemas"]["Timestamp"];
            /** Format: uint64 */
            cpu_usec: number;
            /** Format: uint64 */
            disk_bytes: number;
            /** Format: uint64 */
            disk_limit_bytes: number;
            /** Format: uint64 */
            memory_bytes: number;
            /** Format: uint64 */
            memory_limit_bytes: number;
            /** Format: uint64 */
            memory_peak_bytes: number;
            /** Format: uint64 */
            network_received_bytes: number;
            /** Format: uint64 */
            network_sent_bytes: number;
            /** Format: uint64 */
            oom_kills: number;
            /** Format: uint64 */
            pids: number;
            running: boolean;
        };
        /** @description A volume at a place in a sandbox. */
        Mount: {
            /** @description Absolute. Made where it is missing. */
            path: string;
            read_only?: boolean;
            /** @description Id or name; the id in answers. */
            volume: string;
        };
        /** @description Body of `POST …/files/move`. */
        MoveFile: {
            from: string;
            /** @description Replace what is at `to`. */
            replace?: boolean;
            to: string;
            user?: string | null;
        };
        /** @description What the sandbox may reach. */
        Network: {
            /** @description Domains, CIDRs and optional ports; with mode `allowlist`. */
            allow?: string[] | null;
            /**
             * Format: uint32
             * @description What it may receive, likewise.
             */
            bandwidth_down_mbit?: number | null;
            /**
             * Format: uint32
             * @description What the sandbox may send, in megabits per second; absent: no limit.
             */
            bandwidth_up_mbit?: number | null;
            /** @default none */
            mode: components["schemas"]["Reach"];
        };
        /** @description A new key. The token is shown this once and kept only as a hash. */
        NewKey: {
            created_at: components["schemas"]["Timestamp"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            id: string;
            last_used_at?: components["schemas"]["Timestamp"] | null;
            name: string;
            org: string;
            revoked_at?: components["schemas"]["Timestamp"] | null;
            /** @description The key made at first start. */
            root: boolean;
            scopes: components["schemas"]["Scope"][];
            token: string;
        };
        /** @description No query at all: whatever is given is refused. */
        NoQuery: Record<string, never>;
        /** @description Answer of `GET /.well-known/openid-configuration`. */
        OpenIdConfiguration: {
            claims_supported: string[];
            id_token_signing_alg_values_supported: string[];
            issuer: string;
            jwks_uri: string;
            response_types_supported: string[];
            subject_types_supported: string[];
        };
        Org: {
            created_at: components["schemas"]["Timestamp"];
            id: string;
            name: string;
            quota: components["schemas"]["Amount"];
            used: components["schemas"]["Amount"];
        };
        /** @description Some output. `text` when it is UTF-8, else `data` in base64. */
        OutputChunk: {
            data?: string | null;
            /**
             * Format: uint64
             * @description Bytes before `offset` that were asked for and no longer kept.
             */
            dropped?: number;
            /**
             * Format: uint64
             * @description Of the first byte, counted from the command's start.
             */
            offset: number;
            text?: string | null;
        };
        /** @description One line of a live answer (`Accept: application/x-ndjson`) to exec or output. */
        OutputEvent: {
            process: components["schemas"]["Process"];
            /** @constant */
            type: "started";
        } | components["schemas"]["OutputChunk"] | components["schemas"]["OutputChunk"] | components["schemas"]["Exit"] | {
            error: components["schemas"]["ErrorDetail"];
            /** @constant */
            type: "error";
        };
        /** @description Query of `GET …/output` and of attach. */
        OutputQuery: {
            /**
             * @description Go on until the command ends. Without it, what is there now.
             * @default false
             */
            follow: boolean;
            /**
             * Format: uint64
             * @default 0
             */
            stderr_from: number;
            /**
             * Format: uint64
             * @description Offsets to begin at; what is no longer kept is reported as `dropped`.
             * @default 0
             */
            stdout_from: number;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page: {
            items: components["schemas"]["Sandbox"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page10: {
            items: components["schemas"]["SshKey"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page11: {
            items: components["schemas"]["Secret"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page12: {
            items: components["schemas"]["SecretUser"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page13: {
            items: components["schemas"]["Org"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page14: {
            items: components["schemas"]["AuditRecord"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page15: {
            items: components["schemas"]["AuditChain"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page16: {
            items: components["schemas"]["Runner"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page17: {
            items: components["schemas"]["Quarantined"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page2: {
            items: components["schemas"]["Snapshot"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page3: {
            items: components["schemas"]["Event"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page4: {
            items: components["schemas"]["Process"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page5: {
            items: components["schemas"]["Port"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page6: {
            items: components["schemas"]["CodeContext"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page7: {
            items: components["schemas"]["Image"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page8: {
            items: components["schemas"]["Volume"][];
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page9: {
            items: components["schemas"]["Key"][];
            next_cursor?: string | null;
        };
        /** @description Which page of a list. */
        PageQuery: {
            /** @description `next_cursor` of the page before. */
            cursor?: string | null;
            /**
             * Format: uint32
             * @description Items at most; default: 100.
             */
            limit?: number | null;
        };
        /** @description Body of `PATCH /v1/orgs/{org}`. */
        PatchOrg: {
            quota: components["schemas"]["QuotaRequest"];
        };
        /** @description Body of `PATCH /v1/sandboxes/{id}`: what is absent stays. Labels and lifecycle are replaced whole. */
        PatchSandbox: {
            /**
             * Format: uint64
             * @description Refuse with `stale` when the sandbox has another generation by now.
             */
            expected_generation?: number | null;
            labels?: {
                [key: string]: string;
            } | null;
            lifecycle?: components["schemas"]["Lifecycle"] | null;
            /** @description `null` takes the name away. */
            name?: string | null;
            /** @description Replaces the whole policy; connections that it forbids are cut. */
            network?: components["schemas"]["Network"] | null;
            resources?: components["schemas"]["ResourcesChange"] | null;
        };
        /** @description A TCP port somebody inside listens on. */
        Port: {
            address: string;
            /** Format: int32 */
            pid?: number | null;
            /** Format: uint32 */
            port: number;
            process?: string | null;
            /** @description Everybody may visit the preview. */
            public?: boolean;
            /** @description Where its preview is, where the server has previews. Private unless shared. */
            url?: string | null;
        };
        /** @description Where a shared port is visited. */
        PortShare: {
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description For programs that do not resolve such names. */
            path_url: string;
            public: boolean;
            /** @description Of the link by itself: programs may send it as `X-Cove-Token`. */
            token?: string | null;
            /** @description For browsers: a host of its own. Signed unless the port is public. */
            url: string;
        };
        /** @description A command's record. */
        Process: {
            argv: string[];
            /** Format: uint64 */
            cpu_ms: number;
            cwd: string;
            /** @description Absent while it runs. */
            exit?: components["schemas"]["Exit"] | null;
            id: string;
            kind: components["schemas"]["ProcessKind"];
            /** Format: uint64 */
            memory_bytes: number;
            /**
             * @description The interface that started it, with the name of the session or context if it is of one. Absent where
             *     the sandbox began before owners were kept.
             */
            owner?: string | null;
            /**
             * Format: int32
             * @description Inside the sandbox.
             */
            pid: number;
            pty?: components["schemas"]["TerminalSize"] | null;
            started_at: components["schemas"]["Timestamp"];
            /** Format: uint64 */
            stderr_bytes: number;
            /** Format: uint64 */
            stderr_oldest: number;
            /** Format: uint64 */
            stdout_bytes: number;
            /**
             * Format: uint64
             * @description Oldest offsets that can still be read.
             */
            stdout_oldest: number;
            /** @description What the caller gave it. */
            tag?: string | null;
            user: string;
            /**
             * Format: uint32
             * @description Connections attached to its output now.
             */
            viewers: number;
        };
        /** @description What a process is. It follows from the request that started it. */
        ProcessKind: "code_context" | "command" | "terminal" | "dialect_session" | "service";
        /** @description One sandbox, snapshot or volume in quarantine. */
        Quarantined: {
            created_at: components["schemas"]["Timestamp"];
            id: string;
            kind: components["schemas"]["QuarantinedKind"];
            name?: string | null;
            /** @description Id of the organisation that owns it, where the database knows it. */
            org?: string | null;
            /** @description Why it is in quarantine. */
            reason: string;
            /** @description The sandbox a snapshot was taken of. */
            sandbox?: string | null;
            /** @description The state of a sandbox. */
            state?: string | null;
        };
        /** @enum {string} */
        QuarantinedKind: "sandbox" | "snapshot" | "volume";
        /** @description The most an organisation may hold at once; what is absent has its default, or stays. */
        QuotaRequest: {
            /** Format: double */
            cpu?: number | null;
            /** Format: uint64 */
            disk_mb?: number | null;
            /** Format: uint64 */
            memory_mb?: number | null;
            /** Format: uint64 */
            sandboxes?: number | null;
        };
        Reach: "none" | "allowlist" | "open";
        /** @description Query of `GET …/files/archive`. */
        ReadArchive: {
            path: string;
            user?: string | null;
        };
        /** @description Query of `GET …/files`. Ranges come by the `Range` header. */
        ReadFile: {
            /** @description Absolute. */
            path: string;
            /** @description Whose rights to use; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `DELETE …/files`. */
        RemoveFile: {
            path: string;
            /** @description Directories with what is in them. */
            recursive?: boolean;
            user?: string | null;
        };
        /** @description A live change of limits: what is absent stays. */
        ResourcesChange: {
            /** Format: double */
            cpu?: number | null;
            /** Format: uint64 */
            disk_mb?: number | null;
            /** Format: uint64 */
            memory_max_mb?: number | null;
            /** Format: uint64 */
            memory_mb?: number | null;
            /** Format: uint64 */
            pids?: number | null;
        };
        /** @description Limits asked for; what is absent has its default. */
        ResourcesRequest: {
            /** Format: double */
            cpu?: number | null;
            /** Format: uint64 */
            disk_mb?: number | null;
            /** Format: uint64 */
            io_read_mb_s?: number | null;
            /** Format: uint64 */
            io_write_mb_s?: number | null;
            /**
             * Format: uint64
             * @description Where memory may grow to; absent: it does not grow.
             */
            memory_max_mb?: number | null;
            /** Format: uint64 */
            memory_mb?: number | null;
            /** Format: uint64 */
            open_files?: number | null;
            /** Format: uint64 */
            pids?: number | null;
        };
        /** @description Limits in force. */
        ResourcesView: {
            /** Format: double */
            cpu: number;
            /** Format: uint64 */
            disk_mb: number;
            /** Format: uint64 */
            io_read_mb_s?: number | null;
            /** Format: uint64 */
            io_write_mb_s?: number | null;
            /** Format: uint64 */
            memory_max_mb?: number | null;
            /** Format: uint64 */
            memory_mb: number;
            /** Format: uint64 */
            open_files: number;
            /** Format: uint64 */
            pids: number;
        };
        /** @description Body of `POST …/rollback`. */
        Rollback: {
            /** @description Bring its processes back too; refused when it has no memory. */
            memory?: boolean;
            /** @description Id or name. */
            snapshot: string;
        };
        RolledBack: {
            /** @description What it was before; rolling back to this undoes the rollback. */
            kept: components["schemas"]["Snapshot"];
            sandbox: components["schemas"]["Sandbox"];
        };
        /** @description Body of `POST /v1/identity/rotate`. */
        RotateIdentityKeys: {
            /**
             * @description Sign with the new key now and withdraw all others: for keys that somebody else may have. Tokens they
             *     signed are refused from then on. Default: false, the new key signs after an hour and tokens stay valid.
             * @default false
             */
            at_once: boolean;
        };
        /** @description Answer of `POST /v1/secret-keys/rotate`. */
        RotatedSecretKeys: {
            /**
             * Format: uint64
             * @description Organisations whose keys are now wrapped by the newest host key.
             */
            organisations: number;
        };
        /** @description Body of `POST …/code/run`. */
        RunCode: {
            code: string;
            /** @description Id of a context; default: the language's own one, made when first needed. */
            context?: string | null;
            /** @description Default: that of the context; Python where neither is given. */
            language?: components["schemas"]["CodeLanguage"] | null;
            /**
             * Format: uint64
             * @description At its end the code is interrupted; what the context keeps is kept.
             */
            timeout_ms?: number | null;
        };
        /** @description A host that runs sandboxes: what it has, has promised and lacks. */
        Runner: {
            /** Format: uint32 */
            cpus: number;
            /** Format: uint64 */
            disk_bytes: number;
            /** Format: uint64 */
            disk_free_bytes: number;
            findings: components["schemas"]["Finding"][];
            /** Format: uint64 */
            memory_bytes: number;
            name: string;
            /** Format: double */
            promised_cpu: number;
            /** Format: uint64 */
            promised_disk_bytes: number;
            /** Format: uint64 */
            promised_memory_bytes: number;
            /** Format: uint64 */
            running: number;
            /** Format: uint64 */
            sandboxes: number;
            tiers: components["schemas"]["Tier"][];
            /**
             * Format: uint64
             * @description How many sandboxes are prepared ahead of need; 0: every create begins from nothing.
             * @default 0
             */
            warm: number;
        };
        /** @description A sandbox. */
        Sandbox: {
            created_at: components["schemas"]["Timestamp"];
            env: {
                [key: string]: string;
            };
            /** @description The snapshot it began from, when it did not begin from an image. */
            from_snapshot?: string | null;
            /**
             * Format: uint64
             * @description Grows with every change.
             */
            generation: number;
            /** @description The snapshot its present state grew from. */
            head?: string | null;
            id: string;
            /** @description What it may know and do about itself; absent without one. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description As asked for. */
            image: string;
            /** @description The image itself, once the host resolved the name. */
            image_id?: string | null;
            isolation: string;
            labels: {
                [key: string]: string;
            };
            last_active_at: components["schemas"]["Timestamp"];
            lifecycle: components["schemas"]["Lifecycle"];
            name?: string | null;
            network: components["schemas"]["Network"];
            no_new_privs: boolean;
            /** @description Why it is in this state, when that is not plain. */
            reason?: string | null;
            resources: components["schemas"]["ResourcesView"];
            /** @description Secrets that it may use by placeholders. */
            secrets?: components["schemas"]["SecretGrant"][];
            started_at?: components["schemas"]["Timestamp"] | null;
            state: components["schemas"]["SandboxState"];
            /** @description Absent unless it is stopped or has failed. */
            stopped_at?: components["schemas"]["Timestamp"] | null;
            updated_at: components["schemas"]["Timestamp"];
            user?: string | null;
            /** @description Mounted volumes; no part of its disk, nor of its snapshots. */
            volumes?: components["schemas"]["Mount"][];
            workdir?: string | null;
        };
        SandboxState: ("running" | "deleting" | "gone") | "creating" | "frozen" | "pausing" | "paused" | "resuming" | "restoring" | "stopping" | "stopped" | "failed";
        /** @description What was used. */
        SandboxUsage: {
            /** Format: double */
            cpu_seconds: number;
            /** Format: double */
            disk_gb_hours: number;
            /** Format: uint64 */
            egress_bytes: number;
            /**
             * Format: double
             * @description Time that was charged by the difference of dates, because the host was restarted meanwhile. The rest
             *     is measured.
             * @default 0
             */
            estimated_seconds: number;
            /** Format: double */
            memory_gb_seconds: number;
            sandbox: string;
        };
        /** @description What a key may do. Each scope includes those before it. */
        Scope: "read" | "use" | "manage" | "admin";
        /** @description A secret without its value. */
        Secret: {
            created_at: components["schemas"]["Timestamp"];
            hosts: string[];
            id: string;
            last_used_at?: components["schemas"]["Timestamp"] | null;
            name: string;
            /** @description When this version was set. */
            updated_at: components["schemas"]["Timestamp"];
            use: string;
            /**
             * Format: uint64
             * @description Requests it was put into.
             */
            uses: number;
            /**
             * Format: uint64
             * @description Raised by one whenever it is set.
             */
            version: number;
        };
        /** @description A secret in a sandbox: where inside its placeholder is. */
        SecretGrant: {
            /** @description The variable that holds the placeholder. */
            env?: string | null;
            /** @description The file that holds the placeholder, an absolute path. */
            file?: string | null;
            /** @description The secret's name. */
            name: string;
        };
        /** @description A sandbox that used a secret. */
        SecretUser: {
            last_used_at: components["schemas"]["Timestamp"];
            sandbox: string;
            /**
             * Format: uint64
             * @description Requests that the secret was put into.
             */
            uses: number;
        };
        /** @description Body of `POST /v1/secrets`: the first version of a secret, or its next one. */
        SetSecret: {
            /** @description Where it may be sent: `api.example.com`, or `git.example.com:8443`. */
            hosts: string[];
            name: string;
            /**
             * @description Where in a request it belongs: `bearer`, `basic`, `header:NAME` or `query:NAME`.
             * @default bearer
             */
            use: string;
            /** @description Printable ASCII. No call shows it again. */
            value: string;
        };
        /** @description Lets others visit a port: by a signed link, or everybody. */
        SharePort: {
            /**
             * Format: uint64
             * @description How long; default: an hour for a link, what is public stays so until it is taken
             *     back.
             */
            expires_s?: number | null;
            /** @description Everybody may visit, without a link. */
            public?: boolean;
        };
        SignalProcess: {
            /**
             * @description To the process alone instead of its whole group.
             * @default false
             */
            only_leader: boolean;
            /** @description `TERM`, `SIGTERM` or a number. */
            signal: string;
        };
        /** @description One state of a sandbox, with memory or without. It never changes. */
        Snapshot: {
            created_at: components["schemas"]["Timestamp"];
            /** @description In timelines only: it is gone. */
            deleted_at?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint64
             * @description What deleting it would free.
             */
            exclusive_bytes: number;
            id: string;
            /** @description The image below it. */
            image_id?: string | null;
            kind: components["schemas"]["SnapshotKind"];
            memory: boolean;
            /**
             * Format: uint64
             * @description Of its memory, part of `exclusive_bytes`.
             */
            memory_bytes: number;
            name?: string | null;
            /** @description The snapshot the sandbox's state had grown from. */
            parent?: string | null;
            /** @description Where the sandbox went instead, for what a rollback kept. */
            rolled_back_to?: string | null;
            /** @description Where it was taken; absent for an import. That sandbox may be gone. */
            sandbox?: string | null;
            /**
             * Format: uint64
             * @description What it shares with others.
             */
            shared_bytes: number;
            /**
             * Format: uint64
             * @description How long the sandbox stood still for it.
             */
            stopped_us: number;
            /** @description Why its memory cannot be restored on this host, when it has some and it cannot. */
            unfit?: string | null;
            /** @description Volumes that its sandbox had. What is in them is not in the snapshot; a fork mounts the same volumes. */
            volumes_not_included?: components["schemas"]["Mount"][];
        };
        /** @description Why a snapshot was taken. All but the first and the last come and go by themselves. */
        SnapshotKind: "manual" | "auto" | "fork" | "rollback" | "import";
        /** @description A way in for one sandbox. The token is the password. */
        SshAccess: {
            /** @description For a terminal. */
            command: string;
            expires_at: components["schemas"]["Timestamp"];
            fingerprint: string;
            host: string;
            host_key: string;
            /** @description A line for `known_hosts`. */
            known_hosts: string;
            /** Format: uint16 */
            port: number;
            token: string;
            /** @description The user name to log in with; `USER+` before it chooses the user inside. */
            user: string;
        };
        /** @description Answer of `GET /v1/ssh`: where the gateway is and how to know it. */
        SshHost: {
            /** @description Whether this server has a gateway; the rest is absent without one. */
            available: boolean;
            fingerprint?: string | null;
            host?: string | null;
            host_key?: string | null;
            /** @description A line for `known_hosts`. */
            known_hosts?: string | null;
            /** Format: uint16 */
            port?: number | null;
        };
        /** @description A public key whose holder may use the organisation's sandboxes over SSH. */
        SshKey: {
            created_at: components["schemas"]["Timestamp"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            fingerprint: string;
            id: string;
            name: string;
            public_key: string;
        };
        /** @description Body of `POST …/processes`: as exec, but in the background, with an open input or a terminal. */
        StartProcess: {
            argv?: string[] | null;
            command?: string | null;
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description Give it a terminal of this size. */
            pty?: components["schemas"]["TerminalSize"] | null;
            /**
             * Format: uint64
             * @description Bytes of output kept of each stream for those who come later.
             */
            ring_bytes?: number | null;
            /** @description Keep its input open for `POST …/stdin` and attach. A terminal always has one. */
            stdin_open?: boolean;
            tag?: string | null;
            /** Format: uint64 */
            timeout_ms?: number | null;
            user?: string | null;
        };
        /** @description Query of `GET …/files/stat`. */
        StatFile: {
            /** @description Describe what a symlink points to instead of the link. */
            follow?: boolean;
            path: string;
            user?: string | null;
        };
        /** @description Query of `POST …/stdin`; its body is the raw input. */
        StdinQuery: {
            /**
             * @description Close the input after these bytes.
             * @default false
             */
            close: boolean;
        };
        /** @description Body of `POST …/stop`; may be left out. */
        StopSandbox: {
            /**
             * Format: uint64
             * @description Time processes get between SIGTERM and SIGKILL. Absent: the server's setting `stop_grace_ms`, 10 seconds by default.
             */
            grace_ms?: number | null;
        };
        /** @description Body of `POST …/snapshots`; may be left out. */
        TakeSnapshot: {
            /** @description Processes and memory too, not only the disk. */
            memory?: boolean;
            /** @description Unique among the organisation's snapshots: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
        };
        TerminalSize: {
            /** Format: uint32 */
            cols: number;
            /** Format: uint32 */
            rows: number;
        };
        Tier: {
            capabilities: string[];
            name: string;
            usable: boolean;
        };
        /** @description The tree a sandbox is part of. */
        Timeline: {
            created_at: components["schemas"]["Timestamp"];
            /** @description Sandboxes that began from one of its snapshots, oldest first. */
            forks: components["schemas"]["TimelineFork"][];
            /** @description The snapshot it began from, when it did not begin from an image. */
            from_snapshot?: string | null;
            /** @description The snapshot its present state grew from. */
            head?: string | null;
            name?: string | null;
            sandbox: string;
            /**
             * @description Its own and those it grew from, oldest first; those that are gone too, as long as they are
             *     remembered.
             */
            snapshots: components["schemas"]["Snapshot"][];
            state: components["schemas"]["SandboxState"];
            /** @description There are more snapshots than these. */
            truncated: boolean;
        };
        TimelineFork: {
            created_at: components["schemas"]["Timestamp"];
            from_snapshot: string;
            name?: string | null;
            sandbox: string;
            state: components["schemas"]["SandboxState"];
        };
        /** Format: date-time */
        Timestamp: string;
        /**
         * @description Answer of `GET /v1/usage`: the organisation's total, which includes the disk of its snapshots, and a
         *     page of its sandboxes, deleted ones too.
         */
        Usage: {
            items: components["schemas"]["SandboxUsage"][];
            next_cursor?: string | null;
            total: components["schemas"]["UsageFigures"];
        };
        /** @description What was used. */
        UsageFigures: {
            /** Format: double */
            cpu_seconds: number;
            /** Format: double */
            disk_gb_hours: number;
            /** Format: uint64 */
            egress_bytes: number;
            /**
             * Format: double
             * @description Time that was charged by the difference of dates, because the host was restarted meanwhile. The rest
             *     is measured.
             * @default 0
             */
            estimated_seconds: number;
            /** Format: double */
            memory_gb_seconds: number;
        };
        /** @description Query of `GET /v1/usage`. */
        UsageQuery: {
            cursor?: string | null;
            /** @description Begin of the period, to the hour; absent: the beginning. */
            from?: components["schemas"]["Timestamp"] | null;
            /** Format: uint32 */
            limit?: number | null;
            /** @description Only this sandbox, over its whole life. */
            sandbox?: string | null;
            /** @description End of the period, to the hour, itself not in it; absent: now. */
            to?: components["schemas"]["Timestamp"] | null;
        };
        /** @description A volume. */
        Volume: {
            created_at: components["schemas"]["Timestamp"];
            /** @description The volume it began as a copy of; that may be gone. */
            from?: string | null;
            id: string;
            name: string;
            read_only: boolean;
            /** Format: uint64 */
            size_mb: number;
            /** @description Ids of the sandboxes that mount it, running or not; at most 100. Only where one volume is shown. */
            used_by?: string[] | null;
            /**
             * Format: uint64
             * @description What it holds, as of the host's last look, which is up to a minute ago.
             */
            used_bytes: number;
        };
        /** @description Query of `GET …/files/watch`. */
        WatchFiles: {
            path: string;
            recursive?: boolean;
            user?: string | null;
        };
        /** @description Query of `PUT …/files/archive`; the body is a tar, unpacked below `path` and nowhere else. */
        WriteArchive: {
            /** @description Keep the owners the archive names. */
            keep_owner?: boolean;
            path: string;
            user?: string | null;
        };
        /**
         * @description Query of `PUT …/files`; the body is the contents. Replaces the file in one step unless `append`
         *     or `at` is given.
         */
        WriteFile: {
            append?: boolean;
            /**
             * Format: uint64
             * @description Write into the existing file at this offset.
             */
            at?: number | null;
            /** @description Octal; 0644 for a new file, an existing one keeps its own. */
            mode?: string | null;
            /** @description `user[:group]`, names or numbers. */
            owner?: string | null;
            /** @description Make missing parent directories. */
            parents?: boolean;
            path: string;
            /** @description Flush to the disk before answering. */
            sync?: boolean;
            user?: string | null;
        };
        /** @description What a write or an unpacked archive brought in. */
        Written: {
            /** Format: uint64 */
            bytes: number;
            /** Format: uint64 */
            entries: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
