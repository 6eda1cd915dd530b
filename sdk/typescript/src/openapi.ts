// Written by tools/generate.mjs from the server's OpenAPI document. Do not edit.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * @description How the instructions of a virtual machine are executed.
         *     - `kvm`: By the processor, with hardware virtualisation.
         *     - `software`: By QEMU in software: slow, and used only if it is named.
         * @enum {string}
         */
        Accel: "kvm" | "software";
        /** @description Body of `POST /v1/images`: where the image comes from. */
        AddImage: {
            /** @description Password or token for the registry. */
            password?: string | null;
            /** @description Image reference, like `docker.io/library/python:3.12`. */
            reference: string;
            /**
             * @description Always `registry`.
             * @constant
             */
            type: "registry";
            /** @description User name for the registry. */
            username?: string | null;
        } | {
            /**
             * @description Always `debian`.
             * @constant
             */
            type: "debian";
        } | {
            /**
             * @description Always `code_interpreter`.
             * @constant
             */
            type: "code_interpreter";
        } | {
            /** @description Name of the new image. */
            name: string;
            /** @description Id or name. */
            snapshot: string;
            /**
             * @description Always `snapshot`.
             * @constant
             */
            type: "snapshot";
        } | {
            /** @description Name of the new image. */
            name: string;
            /** @description Absolute path on the server. */
            path: string;
            /**
             * @description Always `local`.
             * @constant
             */
            type: "local";
        };
        /** @description Body of `POST /v1/ssh-keys`. */
        AddSshKey: {
            /**
             * Format: uint64
             * @description Seconds until it expires; absent: when it is removed.
             */
            expires_in_s?: number | null;
            /** @description Name of the key. */
            name: string;
            /** @description The one line of a `.pub` file: ed25519 or ECDSA. */
            public_key: string;
        };
        /** @description New owner of a quarantined resource. */
        AdoptQuarantined: {
            /**
             * @description Id of an organisation; default: the caller's own. A resource that has an owner goes back to
             *     its owner.
             */
            org?: string | null;
        };
        /** @description Amounts of the resources that a quota limits. */
        Amount: {
            /**
             * Format: double
             * @description CPUs.
             */
            cpu: number;
            /**
             * Format: uint64
             * @description Disk in MiB.
             */
            disk_mb: number;
            /**
             * Format: uint64
             * @description Memory in MiB.
             */
            memory_mb: number;
            /**
             * Format: uint64
             * @description Number of sandboxes.
             */
            sandboxes: number;
        };
        /** @description A request that a sandbox asks to send with a secret. */
        Approval: {
            /** @description Time of the first such request. */
            asked_at: components["schemas"]["Timestamp"];
            /**
             * Format: uint32
             * @description Bytes of the body.
             */
            body_bytes?: number | null;
            /** @description SHA-256 of the body, in hexadecimal digits. Absent if the body was not read: then the request cannot be approved once. */
            body_sha256?: string | null;
            /** @description Time at which it is removed, with its decision. */
            expires_at: components["schemas"]["Timestamp"];
            /** @description Host, with its port if that is not 443. */
            host: string;
            /** @description Id. */
            id: string;
            /** @description Method of the request. */
            method: string;
            /** @description Path of the request, with the query. */
            path: string;
            /** @description Id of the sandbox. */
            sandbox: string;
            /** @description Name of the secret. */
            secret: string;
            /** @description The decision. */
            state: components["schemas"]["ApprovalState"];
            /**
             * Format: uint32
             * @description Requests that are held for it now.
             */
            waiting: number;
        };
        /**
         * @description A decision.
         *     - `approve`: The request may be sent.
         *     - `deny`: The request is refused; an earlier approval is revoked.
         * @enum {string}
         */
        ApprovalDecision: "approve" | "deny";
        /**
         * @description The decision.
         *     - `pending`: No decision yet.
         *     - `once`: Exactly this request may be sent once.
         *     - `timed`: All requests of the sandbox with the secret to the host may be sent until it expires.
         *     - `denied`: This request is refused until it expires.
         * @enum {string}
         */
        ApprovalState: "pending" | "once" | "timed" | "denied";
        /** @description Query of attach. */
        AttachQuery: {
            /**
             * Format: uint64
             * @description Offset of standard error to start at.
             * @default 0
             */
            stderr_from: number;
            /**
             * Format: uint64
             * @description Offset of standard output to start at.
             * @default 0
             */
            stdout_from: number;
        };
        /** @description An organisation's chain of audit records: its beginning, its end, and whether it is intact. */
        AuditChain: {
            /** @description The hash of that record. */
            anchor_hash: string;
            /**
             * Format: uint64
             * @description The id of the last record that retention has removed, or 0.
             */
            anchor_sequence: number;
            /** @description The problem with that record. */
            broken?: string | null;
            /**
             * Format: uint64
             * @description The first record that is missing or does not match the previous one.
             */
            broken_at?: number | null;
            /**
             * @description The hash of the last record. Store it elsewhere to detect that the whole chain was
             *     rewritten.
             */
            hash: string;
            /** @description Id of the organisation. */
            org: string;
            /**
             * Format: uint64
             * @description The id of the last record.
             */
            sequence: number;
            /**
             * Format: uint64
             * @description Records up to this id are older than the chain and have no hash.
             */
            unchained: number;
            /**
             * Format: uint64
             * @description Number of verified records; absent if the chain was not checked.
             */
            verified?: number | null;
        };
        /** @description One line of an export (`Accept: application/x-ndjson`): the chain, then its records, oldest first. */
        AuditLine: components["schemas"]["AuditChain"] | components["schemas"]["AuditRecord"];
        /** @description One call that changes something: who, what, from where, and its result. */
        AuditRecord: {
            /** @description Name of the operation, like `sandbox.create`. */
            action: string;
            /** @description Time of the call. */
            at: components["schemas"]["Timestamp"];
            /** @description More about the operation. */
            detail?: string | null;
            /**
             * @description SHA-256 of the previous record's hash and its own fields; absent in records that are older
             *     than the chain.
             */
            hash?: string;
            /**
             * Format: uint64
             * @description Number of the record in its chain.
             */
            id: number;
            /** @description Id of the key; absent when the system itself acted. */
            key?: string | null;
            /** @description Id of the request. */
            request_id?: string | null;
            /**
             * @description `ok` or the code of the error; for calls into a sandbox also `pending`, `not_done` or
             *     `unknown`.
             */
            result: string;
            /** @description Address that the call came from. */
            source?: string | null;
            /** @description What the operation was applied to. */
            target?: string | null;
        };
        /** @description Automatic snapshots of the disk. One is taken only if something changed. */
        AutoSnapshot: {
            /** @description Take one before each command. */
            before_exec?: boolean;
            /**
             * Format: uint64
             * @description Interval in seconds while it runs.
             */
            every_s?: number | null;
            /**
             * Format: uint32
             * @description Number of newest ones to keep; default: 10.
             */
            keep?: number | null;
        };
        /**
         * @description Who shares a limit, and whether it renews.
         *     - `sandbox`: Each sandbox by itself, over its whole life.
         *     - `day`: All sandboxes of the organisation together, each day in UTC.
         *     - `organisation`: All sandboxes of the organisation together, over the whole life of the secret.
         * @enum {string}
         */
        BudgetScope: "sandbox" | "day" | "organisation";
        /**
         * @description What a limit counts.
         *     - `requests`: Requests that the secret was put into.
         *     - `bytes`: Bytes of these requests and of their answers.
         * @enum {string}
         */
        BudgetUnit: "requests" | "bytes";
        /** @description A build. */
        Build: {
            /**
             * Format: uint64
             * @description Steps taken from the cache.
             */
            cached: number;
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Why it failed, with the step and the end of its output. */
            error?: string | null;
            /** @description Time when it ended. */
            finished_at?: components["schemas"]["Timestamp"] | null;
            /** @description Id. */
            id: string;
            /** @description Name of the template. */
            name: string;
            /** @description State. */
            state: components["schemas"]["BuildState"];
            /**
             * Format: uint64
             * @description Steps started so far. Only steps that change files count: `RUN`, `COPY`, `ADD` and
             *     `WORKDIR`.
             */
            steps: number;
            /** @description Id of the version that it created. */
            template?: string | null;
        };
        /** @description Answer of `DELETE /v1/build-cache`. */
        BuildCacheCleared: {
            /**
             * Format: uint64
             * @description Number of deleted steps.
             */
            steps: number;
        };
        /** @description One line of a build's log. */
        BuildLogEvent: {
            /**
             * Format: uint32
             * @description Line of the Dockerfile.
             */
            line: number;
            /**
             * Format: uint64
             * @description Milliseconds since the step started.
             */
            ms: number;
            /**
             * Format: uint64
             * @description Number of the step, from 1.
             */
            number: number;
            /** @description State. */
            state: components["schemas"]["BuildStepState"];
            /** @description The instruction. */
            text: string;
            /**
             * Format: uint64
             * @description Number of steps, as far as it is known.
             */
            total: number;
            /**
             * @description Always `step`.
             * @constant
             */
            type: "step";
        } | {
            /** @description `stdout` or `stderr`. */
            stream: string;
            /** @description The text; bytes that are not UTF-8 are replaced. */
            text: string;
            /**
             * @description Always `output`.
             * @constant
             */
            type: "output";
        } | {
            /** @description The text. */
            text: string;
            /**
             * @description Always `note`.
             * @constant
             */
            type: "note";
        } | {
            /**
             * Format: uint64
             * @description Number of bytes.
             */
            bytes: number;
            /**
             * @description Always `dropped`.
             * @constant
             */
            type: "dropped";
        } | {
            /** @description The build. */
            build: components["schemas"]["Build"];
            /**
             * @description Always `end`.
             * @constant
             */
            type: "end";
        };
        /** @description A server to run before the template's memory is captured. */
        BuildStart: {
            /** @description Shell command; default: the Dockerfile's `ENTRYPOINT` and `CMD`. */
            command?: string | null;
            /** @description Shell command that succeeds once the server is ready. It is repeated until then. */
            ready: string;
            /**
             * Format: uint64
             * @description Seconds to wait for it; default: 60.
             */
            timeout_s?: number | null;
        };
        /**
         * @description - `waiting`: Waiting for its context.
         * @enum {string}
         */
        BuildState: "running" | "done" | "failed" | "cancelled" | "waiting";
        /**
         * @description How far a step is.
         *     - `started`: Running.
         *     - `cached`: Its result was in the cache.
         *     - `done`: It succeeded.
         *     - `failed`: It failed, and so did the build.
         * @enum {string}
         */
        BuildStepState: "started" | "cached" | "done" | "failed";
        /** @description Builds, newest first. */
        Builds: {
            /** @description The builds that are still recorded. */
            items: components["schemas"]["Build"][];
        };
        /**
         * @description The kind of a change.
         *     - `ready`: The watch is ready; every later change is reported.
         *     - `overflow`: Changes were lost because there were too many; list the directory again.
         * @enum {string}
         */
        ChangeKind: "created" | "written" | "removed" | "renamed" | "attributes" | "ready" | "overflow";
        /** @description Body of `POST …/files/chmod`: mode, owner or both. */
        ChangeMode: {
            /** @description New octal mode. */
            mode?: string | null;
            /** @description New owner: `user[:group]`, names or numbers. */
            owner?: string | null;
            /** @description Absolute path. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description A context that keeps variables between runs. It is a process of the sandbox. */
        CodeContext: {
            /** @description Working directory. */
            cwd: string;
            /** @description Whether runs that name no context use it. */
            default: boolean;
            /** @description Id; also the id of its process. */
            id: string;
            /** @description Language of its code. */
            language: components["schemas"]["CodeLanguage"];
            /** @description Time when the context started. */
            started_at: components["schemas"]["Timestamp"];
            /** @description User that the code runs as. */
            user: string;
        };
        /** @description The end of a run. */
        CodeEnd: {
            /** @description The context it ran in. */
            context: string;
            /** @description The context's process ended during the run; its variables are lost. */
            context_ended: boolean;
            /**
             * Format: uint64
             * @description Duration of the run in milliseconds.
             */
            duration_ms: number;
            /**
             * Format: int32
             * @description Exit code of a shell's last command.
             */
            exit_code?: number | null;
            /** @description The code was interrupted after its timeout. */
            timed_out: boolean;
            /** @description Some output or results were too large and are left out. */
            truncated: boolean;
        };
        /** @description The exception that the code raised. */
        CodeError: {
            /** @description Name of the exception. */
            name: string;
            /** @description Traceback as the interpreter prints it. */
            traceback: string;
            /** @description Message of the exception. */
            value: string;
        };
        /** @description One line of a live answer to a run. */
        CodeEvent: {
            /** @description The context that runs the code. */
            context: components["schemas"]["CodeContext"];
            /**
             * @description Always `started`.
             * @constant
             */
            type: "started";
        } | {
            /** @description Some output. */
            text: string;
            /**
             * @description Always `stdout`.
             * @constant
             */
            type: "stdout";
        } | {
            /** @description Some output. */
            text: string;
            /**
             * @description Always `stderr`.
             * @constant
             */
            type: "stderr";
        } | {
            /** @description The result. */
            result: components["schemas"]["CodeOutput"];
            /**
             * @description Always `result`.
             * @constant
             */
            type: "result";
        } | {
            /** @description The error. */
            error: components["schemas"]["CodeError"];
            /**
             * @description Always `error`.
             * @constant
             */
            type: "error";
        } | components["schemas"]["CodeEnd"] | {
            /** @description The error. */
            error: components["schemas"]["ErrorDetail"];
            /**
             * @description Always `failed`.
             * @constant
             */
            type: "failed";
        };
        /**
         * @description A language of the code interpreter.
         *     - `typescript`: Runs in JavaScript's contexts.
         * @enum {string}
         */
        CodeLanguage: "python" | "javascript" | "bash" | "typescript";
        /** @description A result in all its formats. */
        CodeOutput: {
            /** @description Media type to content: text, base64 for binary formats (`image/png`), or JSON. */
            data: {
                [key: string]: unknown;
            };
            /** @description The value of the code's last expression. */
            main: boolean;
        };
        /** @description The whole answer to a run. */
        CodeResult: {
            /** @description The context it ran in. */
            context: string;
            /** @description The context's process ended during the run; its variables are lost. */
            context_ended: boolean;
            /**
             * Format: uint64
             * @description Duration of the run in milliseconds.
             */
            duration_ms: number;
            /** @description The exception that ended the code, if any. */
            error?: components["schemas"]["CodeError"] | null;
            /**
             * Format: int32
             * @description Exit code of a shell's last command.
             */
            exit_code?: number | null;
            /** @description Results that the code showed, in order. */
            results: components["schemas"]["CodeOutput"][];
            /** @description Standard error of the code. */
            stderr: string;
            /** @description Standard output of the code. */
            stdout: string;
            /** @description The code was interrupted after its timeout. */
            timed_out: boolean;
            /** @description Some output or results were too large and are left out. */
            truncated: boolean;
        };
        /** @description Body of `POST /v1/builds`. The build begins when its context was sent with `PUT /v1/builds/{build}/context`. */
        CreateBuild: {
            /** @description Values for `ARG`. */
            args?: {
                [key: string]: string;
            };
            /**
             * @description Defaults of sandboxes made from the template, put over what the Dockerfile says. Sandboxes that run the steps
             *     have its limits.
             */
            defaults?: components["schemas"]["TemplateDefaults"];
            /** @description The text of the Dockerfile. */
            dockerfile: string;
            /** @description The text of `.dockerignore`. */
            ignore?: string;
            /** @description Name of the template; it gets a new version. */
            name: string;
            /** @description Network policy of the steps; default: `preset:packages`. */
            network?: components["schemas"]["Network"] | null;
            /** @description Run every step again, without the cache. */
            no_cache?: boolean;
            /** @description Ask registries for images that are on the host already. */
            pull?: boolean;
            /** @description A server to run before the template's memory is captured: sandboxes begin with it running. */
            start?: components["schemas"]["BuildStart"] | null;
            /** @description Tags to move to the new version; default: `latest`. */
            tags?: string[];
            /** @description Name or number of the stage to build; default: the last. */
            target?: string | null;
        };
        /** @description Body of `POST …/code/contexts`. */
        CreateCodeContext: {
            /** @description Working directory; default: that of the sandbox. */
            cwd?: string | null;
            /** @description Additional environment variables. */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Language of the code.
             * @default python
             */
            language: components["schemas"]["CodeLanguage"];
            /** @description User name or number, optionally with `:group`. */
            user?: string | null;
        };
        /** @description Body of `POST /v1/sandboxes/{id}/identity`. */
        CreateIdentityToken: {
            /** @description Audience of the token, such as `sts.amazonaws.com`: the `aud` claim. */
            audience: string;
            /**
             * Format: uint64
             * @description How long the token is valid. Default: 300.
             */
            expires_s?: number | null;
        };
        /** @description Settings of a join token. */
        CreateJoinToken: {
            /**
             * Format: uint64
             * @description Seconds until it expires; default: one hour.
             */
            valid_s?: number | null;
        };
        /** @description Body of `POST /v1/keys`. */
        CreateKey: {
            /**
             * Format: uint64
             * @description Seconds until it expires; absent: when it is revoked.
             */
            expires_in_s?: number | null;
            /** @description Name of the key. */
            name: string;
            /** @description Organisation of the key, if it is another one; needs the scope `admin`. */
            org?: string | null;
            /** @description Binds the key to this sandbox, by id or name: nothing else exists for it. Not with the scope `admin`. */
            sandbox?: string | null;
            /** @description Permissions of the key. */
            scopes: components["schemas"]["Scope"][];
        };
        /** @description Body of `POST /v1/orgs`. */
        CreateOrg: {
            /** @description Name, unique on the server. */
            name: string;
            /** @description Quota; absent fields have the server's default: of what the hosts can promise, half at most. */
            quota?: components["schemas"]["QuotaRequest"] | null;
        };
        /** @description Body of `POST /v1/sandboxes`. Everything has a default. */
        CreateSandbox: {
            /**
             * @description With isolation `vm`: what executes the machine's instructions. Default: `kvm`, refused on hosts where it does not
             *     boot; `software` is emulation, slow, and never chosen by itself. Absent with `snapshot` or `template` and without
             *     `isolation`: as there.
             */
            accel?: components["schemas"]["Accel"] | null;
            /** @description Environment variables of all commands. */
            env?: {
                [key: string]: string;
            };
            /** @description Identity of the sandbox: tokens from `http://cove.internal:16910/`. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description Name or id of an image; default: `debian`. */
            image?: string | null;
            /** @description The isolation tier: `container`, `gvisor`, `vm`, or `auto` for the strongest that the host has and the operator allows; default: the operator's choice, `container` unless changed. */
            isolation?: string | null;
            /** @description Labels: key and value pairs for searches. */
            labels?: {
                [key: string]: string;
            };
            /** @description When to freeze, pause, stop or delete it automatically; default: never. */
            lifecycle?: components["schemas"]["LifecycleRequest"] | null;
            /** @description With `snapshot`: continue its processes; without, it boots from its disk. */
            memory?: boolean;
            /** @description Unique in the organisation: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
            /** @description Network policy; default: no network. */
            network?: components["schemas"]["NetworkRequest"] | null;
            /** @description Forbid gaining privileges through setuid programs. */
            no_new_privs?: boolean;
            /** @description Which hosts it may be on. Absent with `snapshot` or `template`: as there; `{}`: any host without taints. */
            placement?: components["schemas"]["Placement"] | null;
            /** @description Limits. */
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
            /**
             * @description A template to begin from, in place of an image or a snapshot: `name`, `name:tag`, `name:version` or its id.
             *     Everything that is not given is then the template's, each field of `resources`, `network` and `lifecycle` by itself,
             *     and `env` is put over its variables.
             */
            template?: string | null;
            /** @description User that commands run as; default: the image's user, else root. */
            user?: string | null;
            /**
             * @description Volumes to mount. They are no part of its disk, nor of its snapshots. Absent with `snapshot`: those that the
             *     snapshot's sandbox had; with `template`: the template's; `[]`: none.
             */
            volumes?: components["schemas"]["Mount"][] | null;
            /** @description Working directory of commands; default: the image's directory, else the user's home. */
            workdir?: string | null;
        };
        /** @description Body of `POST /v1/sandboxes/{id}/ssh`. */
        CreateSshToken: {
            /**
             * Format: uint64
             * @description How long the token is valid, in seconds; default: an hour. Its sessions end with it.
             */
            expires_s?: number | null;
            /**
             * Format: uint64
             * @description How long the token can be used to log in, in seconds, if that is shorter.
             */
            login_s?: number | null;
        };
        /**
         * @description Body of `POST /v1/templates`: a new version of a template. What is absent is as it was when the snapshot was taken;
         *     network and lifecycle that are absent have the defaults of every sandbox.
         */
        CreateTemplate: {
            /** @description Defaults of sandboxes made from it. */
            defaults?: components["schemas"]["TemplateDefaults"];
            /** @description Sandboxes continue the snapshot's processes; without, they boot from its disk. */
            memory?: boolean;
            /** @description Name: 1 to 63 lowercase letters, digits or dashes. An existing name gets a new version. */
            name: string;
            /**
             * @description Id or name of the snapshot that sandboxes start from. It cannot be deleted while the
             *     template exists.
             */
            snapshot: string;
            /** @description Tags to move to the new version; default: `latest`. */
            tags?: string[];
        };
        /** @description Body of `POST /v1/volumes`. */
        CreateVolume: {
            /** @description Id or name of a volume to copy, in its current state. */
            from?: string | null;
            /** @description Unique among the organisation's volumes: 1 to 63 lowercase letters, digits or dashes. */
            name: string;
            /** @description Which host it may be on, and so the sandboxes that mount it. A copy is on the host of `from`. */
            placement?: components["schemas"]["Placement"];
            /** @description With `from`: make the copy read-only for ever. */
            read_only?: boolean;
            /**
             * Format: uint64
             * @description Size limit in MiB. Default: 10 GiB, or the size of `from`.
             */
            size_mb?: number | null;
        };
        /** @description Body of `POST /v1/approvals/{approval}`. */
        DecideApproval: {
            /** @description The decision. */
            decision: components["schemas"]["ApprovalDecision"];
            /**
             * Format: uint32
             * @description Approve all requests of the sandbox with the secret to the host for so many seconds. Default: exactly this request, once.
             */
            for_seconds?: number | null;
        };
        /** @description Query of `DELETE /v1/nodes/{node}`. */
        DeleteNode: {
            /**
             * @description The node does not answer and never will: its sandboxes, volumes, and snapshots that are not durable are given
             *     up. Durable snapshots go to another host.
             */
            lost?: boolean;
        };
        /** @description Query of `DELETE /v1/templates/{template}`. */
        DeleteTemplate: {
            /**
             * @description With a name alone: delete all of its versions. Without, a name with several versions is
             *     refused.
             */
            all?: boolean;
        };
        /** @description One decision. A connection has a second entry when it has ended, with its bytes and a new `id`. */
        EgressEntry: {
            /** @description Destination address, if it is known. */
            address?: string | null;
            /** @description Time of the decision. */
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Increases; pass the last one as `after` to continue.
             */
            id: number;
            /** @description The requested host name, if there is one. */
            name?: string | null;
            /**
             * Format: uint16
             * @description Destination port.
             */
            port?: number | null;
            /** @description Protocol of the attempt. */
            protocol: components["schemas"]["EgressProtocol"];
            /**
             * Format: uint64
             * @description Bytes received.
             */
            received_bytes: number;
            /** @description The entry of the policy that allowed it, or why it was denied. */
            rule: string;
            /**
             * Format: uint64
             * @description Bytes sent, once a connection has ended.
             */
            sent_bytes: number;
            /** @description Whether it was allowed. */
            verdict: components["schemas"]["EgressVerdict"];
        };
        /** @description One line of a log that is followed. */
        EgressLine: components["schemas"]["EgressEntry"] | {
            /**
             * @description Always `lost`.
             * @constant
             */
            type: "lost";
        };
        /** @description The kept entries. */
        EgressList: {
            /** @description The entries, oldest first. */
            items: components["schemas"]["EgressEntry"][];
            /** @description Entries after `after` were dropped before they could be read. */
            lost: boolean;
            /**
             * Format: uint64
             * @description Pass it as `after` to continue.
             */
            next: number;
        };
        /**
         * @description Protocol of an attempt.
         * @enum {string}
         */
        EgressProtocol: "dns" | "tcp" | "udp" | "icmp" | "other";
        /** @description Query of `GET /v1/sandboxes/{id}/egress`. */
        EgressQuery: {
            /**
             * Format: uint64
             * @description Start after this entry.
             */
            after?: number | null;
            /**
             * @description Wait for new entries, one JSON value per line.
             * @default false
             */
            follow: boolean;
            /**
             * Format: uint32
             * @description Maximum number of entries; default: 100.
             */
            limit?: number | null;
            /** @description Only this name and names below it. */
            name?: string | null;
            /** @description Only entries of this protocol. */
            protocol?: components["schemas"]["EgressProtocol"] | null;
            /** @description Only entries with this verdict. */
            verdict?: components["schemas"]["EgressVerdict"] | null;
        };
        /**
         * @description Whether an attempt was allowed.
         * @enum {string}
         */
        EgressVerdict: "allowed" | "denied";
        /**
         * @description Encoding of output in JSON.
         * @enum {string}
         */
        Encoding: "text" | "base64";
        /**
         * @description The body of every answer that is not a success.
         * @example {
         *       "error": {
         *         "code": "not_found",
         *         "docs": "/docs/errors/not_found",
         *         "hint": "`cove ls` lists sandboxes",
         *         "message": "there is no sandbox 'agent-7'",
         *         "request_id": "req_0123456789abcdef"
         *       }
         *     }
         */
        ErrorBody: {
            /** @description The error. */
            error: components["schemas"]["ErrorDetail"];
        };
        /**
         * @description Stable names of errors. They are never renamed.
         *     - `malformed_request`: Malformed HTTP or JSON.
         *     - `unauthenticated`: The key is missing, unknown, expired or revoked.
         *     - `forbidden`: The key's scopes do not allow this.
         *     - `quota_exceeded`: The organisation's quota would be exceeded.
         *     - `permission_denied`: The user in the sandbox lacks the permission for the path.
         *     - `path_not_found`: The path does not exist in the sandbox.
         *     - `request_timeout`: The client took too long to send its request.
         *     - `conflict`: The present state does not allow it.
         *     - `stale`: Another request changed the same resource.
         *     - `in_use`: Something still uses it.
         *     - `not_capturable`: A process in the sandbox cannot be captured with its memory.
         *     - `unfit_host`: The captured memory needs a feature that this host lacks, or no host has what was asked of it.
         *     - `unchanged`: Nothing changed since the last snapshot.
         *     - `idempotency_key_reused`: An idempotency key was used before with another request.
         *     - `process_gone`: The process has ended, or does not have the requested stream.
         *     - `invalid_request`: The request is well-formed and has an invalid value.
         *     - `too_many_processes`: The sandbox has its maximum number of processes.
         *     - `limit_reached`: A limit inside the sandbox was reached.
         *     - `unsupported`: This server cannot do it.
         *     - `guest_unreachable`: The sandbox runs, but its guest program does not answer.
         *     - `port_closed`: The port in the sandbox does not accept connections.
         *     - `no_capacity`: The host lacks a resource now.
         *     - `unavailable`: The server is shutting down or overloaded.
         *     - `timed_out`: The work did not finish in time.
         *     - `disk_full`: The sandbox's disk is full.
         * @enum {string}
         */
        ErrorCode: "not_found" | "method_not_allowed" | "already_exists" | "path_exists" | "not_a_directory" | "is_a_directory" | "directory_not_empty" | "payload_too_large" | "uri_too_long" | "unsupported_media_type" | "range_not_satisfiable" | "command_not_found" | "no_such_user" | "rate_limited" | "headers_too_large" | "internal" | "runner_unreachable" | "malformed_request" | "unauthenticated" | "forbidden" | "quota_exceeded" | "permission_denied" | "path_not_found" | "request_timeout" | "conflict" | "stale" | "in_use" | "not_capturable" | "unfit_host" | "unchanged" | "idempotency_key_reused" | "process_gone" | "invalid_request" | "too_many_processes" | "limit_reached" | "unsupported" | "guest_unreachable" | "port_closed" | "no_capacity" | "unavailable" | "timed_out" | "disk_full";
        /** @description An error: a stable code, a message for people and the next step. */
        ErrorDetail: {
            /** @description Stable code of the error; programs can rely on it. */
            code: components["schemas"]["ErrorCode"];
            /** @description Path of the page about this code on the same server; it needs no key. */
            docs?: string;
            /** @description What to do next. */
            hint?: string | null;
            /** @description What failed, for people. The text may change. */
            message: string;
            /** @description Id of the request, also in the server's log. */
            request_id: string;
        };
        /** @description An event of a sandbox. */
        Event: {
            /** @description Time of the event. */
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Increases; pass the last one as `Last-Event-ID` to continue after it.
             */
            id: number;
            /** @description Id of the sandbox. */
            sandbox: string;
        } & ({
            /** @description Why, if it is not obvious. */
            reason?: string | null;
            /** @description The new state. */
            state: components["schemas"]["SandboxState"];
            /**
             * @description Always `state`.
             * @constant
             */
            type: "state";
        } | {
            /**
             * Format: uint64
             * @description Number of processes that were killed.
             */
            kills: number;
            /**
             * Format: uint64
             * @description The limit in MiB.
             */
            limit_mb: number;
            /**
             * Format: uint64
             * @description The most memory in use, in MiB.
             */
            peak_mb: number;
            /**
             * @description Always `oom`.
             * @constant
             */
            type: "oom";
        } | {
            /**
             * Format: uint64
             * @description The limit before, in MiB.
             */
            from_mb: number;
            /**
             * Format: uint64
             * @description The limit now, in MiB.
             */
            to_mb: number;
            /**
             * @description Always `memory_grown`.
             * @constant
             */
            type: "memory_grown";
        } | {
            /**
             * Format: uint64
             * @description The limit in MiB.
             */
            limit_mb: number;
            /**
             * @description Always `disk_held`.
             * @constant
             */
            type: "disk_held";
        } | {
            /**
             * @description Always `disk_released`.
             * @constant
             */
            type: "disk_released";
        } | {
            /**
             * @description Always `resized`.
             * @constant
             */
            type: "resized";
        } | {
            /**
             * @description Always `network_changed`.
             * @constant
             */
            type: "network_changed";
        } | {
            /**
             * @description Always `adopted`.
             * @constant
             */
            type: "adopted";
        } | {
            /** @description It includes processes and memory. */
            memory: boolean;
            /** @description Id of the snapshot. */
            snapshot: string;
            /**
             * @description Always `snapshotted`.
             * @constant
             */
            type: "snapshotted";
        } | {
            /** @description Why. */
            reason: string;
            /**
             * @description Always `capture_failed`.
             * @constant
             */
            type: "capture_failed";
        } | {
            /** @description Id of the snapshot of its state before. */
            kept: string;
            /** @description Id of the snapshot that it was rolled back to. */
            to: string;
            /**
             * @description Always `rolled_back`.
             * @constant
             */
            type: "rolled_back";
        } | {
            /** @description Id of the approval. */
            approval: string;
            /** @description Host, with its port if that is not 443. */
            host: string;
            /** @description Method of the request. */
            method: string;
            /** @description Path of the request, with the query. */
            path: string;
            /** @description Name of the secret. */
            secret: string;
            /**
             * @description Always `approval_requested`.
             * @constant
             */
            type: "approval_requested";
        } | {
            /** @description Id of the approval. */
            approval: string;
            /** @description The decision. */
            decision: components["schemas"]["ApprovalState"];
            /**
             * @description Always `approval_decided`.
             * @constant
             */
            type: "approval_decided";
        });
        /** @description Query of the event streams. */
        EventsQuery: {
            /**
             * Format: uint64
             * @description Start after this event; the header `Last-Event-ID` does the same and has precedence.
             */
            after?: number | null;
            /**
             * @description Wait for new events. Without it, the answer is a list of the kept events.
             * @default false
             */
            follow: boolean;
        };
        /** @description Body of `POST …/exec`. Either `command` or `argv`. */
        Exec: {
            /** @description Program and arguments, run without a shell. */
            argv?: string[] | null;
            /** @description Command line for the user's login shell. */
            command?: string | null;
            /** @description Working directory; default: that of the sandbox. */
            cwd?: string | null;
            /**
             * @description Encoding of output in the whole answer: text (bytes that are not UTF-8 are replaced), or
             *     base64.
             */
            encoding?: components["schemas"]["Encoding"] | null;
            /** @description Environment variables. */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Kill the command when this connection is lost. Otherwise it keeps running and can be
             *     followed again.
             */
            kill_on_disconnect?: boolean;
            /** @description The command's whole standard input, as text. */
            stdin?: string | null;
            /** @description The same, base64; for bytes that are not text. */
            stdin_base64?: string | null;
            /** @description Keep its input open for `POST …/stdin`; only with a live answer. */
            stdin_open?: boolean;
            /** @description A word for listings; it does not change the command. */
            tag?: string | null;
            /**
             * Format: uint64
             * @description Time in milliseconds after which the command's process group is killed.
             */
            timeout_ms?: number | null;
            /** @description User name or number, optionally with `:group`. */
            user?: string | null;
        };
        /**
         * @description The whole answer to exec.
         * @example {
         *       "duration_ms": 3,
         *       "encoding": "text",
         *       "exit_code": 0,
         *       "oom": false,
         *       "process": "prc_abcdefghijklmnop2345",
         *       "stderr": "",
         *       "stderr_bytes": 0,
         *       "stdout": "42\n",
         *       "stdout_bytes": 3,
         *       "timed_out": false,
         *       "truncated": false
         *     }
         */
        ExecResult: {
            /**
             * Format: uint64
             * @description Duration in milliseconds.
             */
            duration_ms: number;
            /** @description How `stdout` and `stderr` are encoded. */
            encoding: components["schemas"]["Encoding"];
            /**
             * Format: int32
             * @description Exit code; 128 + the signal's number if a signal ended it.
             */
            exit_code: number;
            /**
             * @description What to do about a failure, if the server knows; for example that the network of the sandbox
             *     is off.
             */
            hint?: string | null;
            /**
             * Format: uint64
             * @description With `oom`: the sandbox's limit and peak.
             */
            memory_limit_bytes?: number | null;
            /**
             * Format: uint64
             * @description With `oom`: the most memory the sandbox used.
             */
            memory_peak_bytes?: number | null;
            /** @description The kernel killed it because memory was exhausted. */
            oom: boolean;
            /** @description Id of the process, for its record. */
            process: string;
            /**
             * Format: int32
             * @description Number of the signal that ended the command.
             */
            signal?: number | null;
            /** @description Standard error, from its beginning. */
            stderr: string;
            /**
             * Format: uint64
             * @description Bytes written to standard error, kept or not.
             */
            stderr_bytes: number;
            /** @description Standard output, from its beginning. */
            stdout: string;
            /**
             * Format: uint64
             * @description Bytes written to standard output, kept or not.
             */
            stdout_bytes: number;
            /** @description The command was killed after its timeout. */
            timed_out: boolean;
            /** @description Output was longer than an answer can be; this is its first part. */
            truncated: boolean;
        };
        /** @description How a command ended. */
        Exit: {
            /**
             * Format: uint64
             * @description Duration in milliseconds.
             */
            duration_ms: number;
            /**
             * Format: int32
             * @description Exit code; 128 + the signal's number if a signal ended it.
             */
            exit_code: number;
            /**
             * @description What to do about a failure, if the server knows; for example that the network of the sandbox
             *     is off.
             */
            hint?: string | null;
            /**
             * Format: uint64
             * @description With `oom`: the sandbox's limit and peak.
             */
            memory_limit_bytes?: number | null;
            /**
             * Format: uint64
             * @description With `oom`: the most memory the sandbox used.
             */
            memory_peak_bytes?: number | null;
            /** @description The kernel killed it because memory was exhausted. */
            oom: boolean;
            /**
             * Format: int32
             * @description Number of the signal that ended the command.
             */
            signal?: number | null;
            /**
             * Format: uint64
             * @description Bytes written to standard error, kept or not.
             */
            stderr_bytes: number;
            /**
             * Format: uint64
             * @description Bytes written to standard output, kept or not.
             */
            stdout_bytes: number;
            /** @description The command was killed after its timeout. */
            timed_out: boolean;
        };
        /** @description One line of a watch. */
        FileChange: {
            /** @description The entry is a directory. */
            directory?: boolean;
            /** @description Previous path of a renamed entry. */
            from?: string | null;
            /** @description Absolute path. */
            path?: string;
            /** @description The kind of the change. */
            type: components["schemas"]["ChangeKind"];
        };
        /** @description The metadata of a path. */
        FileInfo: {
            /**
             * Format: uint32
             * @description Number of the group.
             */
            gid: number;
            /** @description Name of the group, or its number. */
            group: string;
            /** @description Octal. */
            mode: string;
            /** @description Time of the last modification. */
            modified_at: components["schemas"]["Timestamp"];
            /** @description Last component of the path. */
            name: string;
            /** @description Name of the owner, or its number. */
            owner: string;
            /** @description Absolute path. */
            path: string;
            /**
             * Format: uint64
             * @description Size in bytes.
             */
            size: number;
            /** @description Where a symbolic link points. */
            symlink_target?: string | null;
            /** @description Type of the entry. */
            type: components["schemas"]["FileKind"];
            /**
             * Format: uint32
             * @description Number of the owner.
             */
            uid: number;
        };
        /**
         * @description Type of a directory entry.
         * @enum {string}
         */
        FileKind: "file" | "directory" | "symlink" | "socket" | "fifo" | "device" | "other";
        /** @description One line of `cove doctor`. */
        Finding: {
            /** @description How to fix it. */
            fix?: string | null;
            /** @description Result of the check. */
            level: components["schemas"]["Level"];
            /** @description What was found. */
            message: string;
            /** @description Name of the check. */
            name: string;
        };
        /** @description Body of `POST …/fork`; optional. */
        Fork: {
            /**
             * Format: uint32
             * @description Number of copies; default: 1.
             */
            count?: number | null;
            /** @description Labels in addition to the parent's. */
            labels?: {
                [key: string]: string;
            };
            /** @description Lease of each copy; absent: they have none. */
            lease?: components["schemas"]["LeaseRequest"] | null;
            /** @description The copies continue the parent's processes; without, they boot from its disk. */
            memory?: boolean;
            /** @description Name of the copy; several are called `name-1`, `name-2` and so on. */
            name?: string | null;
        };
        /** @description One copy of a fork, or why it could not be created. */
        Forked: {
            /** @description A copy. */
            sandbox: components["schemas"]["Sandbox"];
        } | {
            /** @description Why the copy could not be created. */
            error: components["schemas"]["ErrorDetail"];
        };
        /**
         * @description An operation that a sandbox may do to itself.
         *     - `snapshot`: Take a snapshot of its disk.
         *     - `fork`: Make a copy of itself.
         *     - `keep_awake`: Postpone its idle rules.
         *     - `label`: Change its labels.
         *     - `end`: Delete itself.
         * @enum {string}
         */
        Grant: "snapshot" | "fork" | "keep_awake" | "label" | "end";
        /** @description Answer of `/healthz` and `/readyz`. */
        Health: {
            /** @description Always `ok`. */
            status: string;
            /** @description Version of the server. */
            version: string;
        };
        /** @description Query of `DELETE /v1/sandboxes/{id}` and `DELETE …/lease`. */
        HolderQuery: {
            /** @description Apply it only if this holder has the lease of the sandbox; otherwise the answer is 409. */
            holder?: string | null;
        };
        /** @description The identity of a sandbox: with it, the metadata endpoint is there inside. */
        Identity: {
            /** @description Operations that it may do to itself. Default: none. */
            grants?: components["schemas"]["Grant"][];
            /**
             * @description Person or service that it acts for; a claim of its tokens. Needs a key with the scope
             *     `admin`, because verifiers trust it.
             */
            on_behalf_of?: string | null;
            /** @description Its task; a claim of its tokens. */
            task?: string | null;
        };
        /** @description A public key in the format of RFC 7517. */
        IdentityKey: {
            /** @description Signature algorithm. */
            alg: string;
            /** @description Exponent, base64url. */
            e: string;
            /** @description Id of the key. */
            kid: string;
            /** @description Key type. */
            kty: string;
            /** @description Modulus, base64url. */
            n: string;
            /** @description Always `sig`. */
            use: string;
        };
        /** @description Answer of `GET /.well-known/jwks.json`: the public keys that check tokens. */
        IdentityKeys: {
            /** @description Public keys that sign tokens, or signed them recently. */
            keys: components["schemas"]["IdentityKey"][];
        };
        /** @description A signed token that identifies a sandbox: a JWT of OpenID Connect, signed with RS256. */
        IdentityToken: {
            /** @description Audience of the token. */
            audience: string;
            /** @description Time when it expires. */
            expires_at: components["schemas"]["Timestamp"];
            /** @description The `iss` claim. Its keys are at `ISSUER/.well-known/jwks.json`. */
            issuer: string;
            /** @description The `sub` claim: the SPIFFE id of the sandbox. */
            subject: string;
            /** @description The token (a JWT). */
            token: string;
        };
        /** @description An image. */
        Image: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Digest of the manifest, for images from a registry. */
            digest?: string | null;
            /** @description Id. */
            id: string;
            /**
             * Format: uint64
             * @description Sandboxes made from it.
             */
            in_use_by: number;
            /** @description Names that refer to the image. */
            names: string[];
            /**
             * Format: uint64
             * @description Size on disk.
             */
            size_bytes: number;
            /** @description `registry`, `bootstrap` or `import`. */
            source: string;
        };
        /** @description Image settings of a Dockerfile. None of these commands runs by itself: see `start` of a build. */
        ImageConfig: {
            /** @description `CMD`. */
            cmd?: string[];
            /** @description `ENTRYPOINT`. */
            entrypoint?: string[];
            /** @description `EXPOSE`, as `PORT/PROTOCOL`. */
            expose?: string[];
            /** @description `HEALTHCHECK`. */
            healthcheck?: components["schemas"]["ImageHealthcheck"] | null;
            /** @description `LABEL`. */
            labels?: {
                [key: string]: string;
            };
            /** @description `ONBUILD`: instructions for builds that start from this image. */
            onbuild?: string[];
            /** @description `SHELL`. */
            shell?: string[] | null;
            /** @description `STOPSIGNAL`. */
            stop_signal?: string | null;
        };
        /** @description A `HEALTHCHECK`. */
        ImageHealthcheck: {
            /**
             * @description The command; empty for `NONE`.
             * @default []
             */
            command: string[];
            /** @description `interval`, `timeout`, `start-period`, `start-interval` and `retries`, as written. */
            options?: {
                [key: string]: string;
            };
        };
        /**
         * @description The progress of an image job. Each line of a live answer is one of these; the last is not
         *     `running`.
         */
        ImageJob: {
            /**
             * Format: uint64
             * @description Bytes done in the current stage.
             */
            done_bytes: number;
            /** @description Why the job failed. */
            error?: components["schemas"]["JobError"] | null;
            /** @description Id of the job. */
            id: string;
            /** @description The image, once the job is done. */
            image?: components["schemas"]["Image"] | null;
            /** @description Name of the image. */
            name: string;
            /** @description Current stage, as text for people. */
            stage: string;
            /** @description State of the job. */
            state: components["schemas"]["JobState"];
            /**
             * Format: uint64
             * @description Bytes of the current stage, if known.
             */
            total_bytes?: number | null;
            /** @description Problems that did not stop the job. */
            warnings: string[];
        };
        /** @description Query of `POST /v1/snapshots/import`. */
        ImportSnapshot: {
            /** @description Name, unique in the organisation. */
            name?: string | null;
        };
        /** @description The result of an import. */
        Imported: {
            /** @description Why the memory in the file was left out, if it was. */
            memory_refused?: string | null;
            /** @description The snapshot. */
            snapshot: components["schemas"]["Snapshot"];
        };
        /** @description Why a job failed. */
        JobError: {
            /** @description Stable code of the error. */
            code: components["schemas"]["ErrorCode"];
            /** @description What failed. */
            message: string;
        };
        /**
         * @description State of an image job.
         * @enum {string}
         */
        JobState: "running" | "done" | "failed";
        /** @description The request of `cove node join`. */
        JoinNode: {
            /** @description Host and port at which the server reaches the node. */
            address: string;
            /** @description Id of the host. */
            host: string;
            /** @description Labels that sandboxes can ask for. */
            labels?: {
                [key: string]: string;
            };
            /** @description Name of the node. */
            name: string;
            /** @description Proof that the host has the token. */
            proof: string;
            /** @description Public key of the node, hexadecimal. */
            public_key: string;
            /** @description Taints: only sandboxes that tolerate all of them are placed there. */
            taints?: string[];
            /** @description Id of the token. */
            token: string;
            /** @description Failure domain that it is in. */
            zone?: string | null;
        };
        /** @description A token with which one host joins. Shown once. */
        JoinToken: {
            /** @description Time when it expires. */
            expires_at: components["schemas"]["Timestamp"];
            /** @description The token, for `cove node join`. */
            token: string;
        };
        /** @description Answer to a host that joined. */
        JoinedNode: {
            /** @description Certificate of the fleet's authority, PEM. */
            authority: string;
            /** @description Certificate of the node, PEM. */
            certificate: string;
            /** @description Id of the fleet. */
            fleet: string;
            /** @description Proof that the server made the token. */
            proof: string;
        };
        /** @description An API key, without its token. */
        Key: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Time when it expires; absent: never. */
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description Id. */
            id: string;
            /** @description Time of the last use. */
            last_used_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name. */
            name: string;
            /** @description Id of the organisation. */
            org: string;
            /** @description Time when it was revoked. */
            revoked_at?: components["schemas"]["Timestamp"] | null;
            /** @description Whether it is the first key of the server. */
            root: boolean;
            /** @description Id of the sandbox that the key is bound to; absent: valid for the whole organisation. */
            sandbox?: string | null;
            /** @description Permissions of the key. */
            scopes: components["schemas"]["Scope"][];
        };
        /** @description A lease: its holder must renew it regularly, else the sandbox is paused and later deleted. */
        Lease: {
            /**
             * Format: uint64
             * @description Seconds after that at which it is deleted.
             */
            delete_after_s: number;
            /** @description Name that the holder chose. */
            holder: string;
            /** @description Whether the sandbox was paused or stopped because the lease was not renewed. */
            lapsed: boolean;
            /**
             * Format: uint64
             * @description Seconds without a renewal after which the sandbox is paused, or stopped where it cannot be paused.
             */
            renew_within_s: number;
        };
        /** @description A lease to start or to take over. */
        LeaseRequest: {
            /**
             * Format: uint64
             * @description Seconds after that at which it is deleted. Default: as before when a lease is taken over, else
             *     the server's setting `lease_delete_after_s`, 86400 by default.
             */
            delete_after_s?: number | null;
            /** @description Name that the holder chose; renewals must give the same name. */
            holder: string;
            /**
             * Format: uint64
             * @description Seconds without a renewal after which the sandbox is paused, or stopped where it cannot be
             *     paused. Default: as before when a lease is taken over, else the server's setting
             *     `lease_renew_s`, 300 by default.
             */
            renew_within_s?: number | null;
        };
        /**
         * @description Severity of a finding of `cove doctor`.
         *     - `warning`: Works, with restrictions.
         *     - `error`: Sandboxes cannot run.
         * @enum {string}
         */
        Level: "ok" | "warning" | "error";
        /**
         * @description When an idle sandbox is frozen, paused, stopped or deleted; absent: never. The times must
         *     increase in this order.
         */
        Lifecycle: {
            /** @description Whether requests wake it when it is frozen or paused; default: true. */
            auto_resume?: boolean | null;
            /** @description When to take snapshots automatically. */
            auto_snapshot?: components["schemas"]["AutoSnapshot"] | null;
            /**
             * Format: uint64
             * @description Delete an idle sandbox after this time, in seconds.
             */
            delete_after_s?: number | null;
            /**
             * Format: uint64
             * @description Freeze an idle sandbox after this time, in seconds: its processes are suspended in memory.
             *     It wakes within milliseconds.
             */
            freeze_after_s?: number | null;
            /**
             * Format: uint64
             * @description Delete the sandbox this many seconds after its creation, idle or not.
             */
            max_lifetime_s?: number | null;
            /**
             * Format: uint64
             * @description Pause an idle sandbox after this time, in seconds: its memory is saved to disk. It resumes
             *     where it was.
             */
            pause_after_s?: number | null;
            /**
             * Format: uint64
             * @description Stop an idle sandbox after this time, in seconds: its processes end, its disk is kept.
             */
            stop_after_s?: number | null;
        };
        /**
         * @description When a new sandbox that nobody uses is put away. Fields that are absent are the template's, else unset; `null` unsets
         *     one that the template has.
         */
        LifecycleRequest: {
            /** @description Whether requests wake it when it is frozen or paused; default: true. */
            auto_resume?: boolean | null;
            /** @description When to take snapshots automatically; replaces the template's setting as a whole. */
            auto_snapshot?: components["schemas"]["AutoSnapshot"] | null;
            /**
             * Format: uint64
             * @description Delete an idle sandbox after this time, in seconds.
             */
            delete_after_s?: number | null;
            /**
             * Format: uint64
             * @description Freeze an idle sandbox after this time, in seconds: its processes are suspended in memory.
             *     It wakes within milliseconds.
             */
            freeze_after_s?: number | null;
            /**
             * @description Lease: the sandbox is paused when its holder does not renew it, and deleted later. Absent:
             *     no lease. Templates have none.
             */
            lease?: components["schemas"]["LeaseRequest"] | null;
            /**
             * Format: uint64
             * @description Delete the sandbox this many seconds after its creation, idle or not.
             */
            max_lifetime_s?: number | null;
            /**
             * Format: uint64
             * @description Pause an idle sandbox after this time, in seconds: its memory is saved to disk. It resumes
             *     where it was.
             */
            pause_after_s?: number | null;
            /**
             * Format: uint64
             * @description Stop an idle sandbox after this time, in seconds: its processes end, its disk is kept.
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
            /**
             * Format: uint32
             * @description Maximum number of entries.
             */
            limit?: number | null;
            /** @description Absolute path of the directory. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `GET /v1/sandboxes`. */
        ListSandboxes: {
            /** @description `next_cursor` of the previous page. */
            cursor?: string | null;
            /** @description `key=value` pairs, separated by commas; all must match. */
            labels?: string | null;
            /**
             * Format: uint32
             * @description Maximum number of items; default: 100.
             */
            limit?: number | null;
            /** @description Only the sandbox with this name. */
            name?: string | null;
            /** @description Only sandboxes in this state. */
            state?: components["schemas"]["SandboxState"] | null;
        };
        /** @description Query of `GET /v1/templates`. */
        ListTemplates: {
            /** @description `next_cursor` of the previous page. */
            cursor?: string | null;
            /**
             * Format: uint32
             * @description Maximum number of items; default: 100.
             */
            limit?: number | null;
            /** @description Only versions of this name. */
            name?: string | null;
        };
        /** @description A directory's entries. */
        Listing: {
            /** @description The entries. */
            items: components["schemas"]["FileInfo"][];
            /** @description There are more entries than the limit. */
            truncated: boolean;
        };
        /** @description Body of `POST …/files/mkdir`. */
        MakeDirectory: {
            /** @description Octal mode; default: 0755. */
            mode?: string | null;
            /** @description Create missing parent directories, and succeed if the directory exists. */
            parents?: boolean;
            /** @description Absolute path. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description The resource usage of a sandbox, measured by the host. */
        Metrics: {
            /** @description Time of the measurement. */
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description CPU time since the start, in microseconds.
             */
            cpu_usec: number;
            /**
             * Format: uint64
             * @description Disk space in use.
             */
            disk_bytes: number;
            /**
             * Format: uint64
             * @description Disk limit.
             */
            disk_limit_bytes: number;
            /**
             * Format: uint64
             * @description Memory in use.
             */
            memory_bytes: number;
            /**
             * Format: uint64
             * @description Memory limit.
             */
            memory_limit_bytes: number;
            /**
             * Format: uint64
             * @description Most memory in use at any time.
             */
            memory_peak_bytes: number;
            /**
             * Format: uint64
             * @description Bytes received over the network.
             */
            network_received_bytes: number;
            /**
             * Format: uint64
             * @description Bytes sent over the network.
             */
            network_sent_bytes: number;
            /**
             * Format: uint64
             * @description Processes that the kernel killed because the memory was full.
             */
            oom_kills: number;
            /**
             * Format: uint64
             * @description Number of processes and threads.
             */
            pids: number;
            /** @description Whether the sandbox runs. */
            running: boolean;
        };
        /** @description A volume at a place in a sandbox. */
        Mount: {
            /** @description Absolute path; created if it is missing. */
            path: string;
            /** @description Mount it read-only. */
            read_only?: boolean;
            /** @description Id or name; the id in answers. */
            volume: string;
        };
        /** @description Body of `POST …/files/move`. */
        MoveFile: {
            /** @description Absolute path of the file or directory to move. */
            from: string;
            /** @description Replace what is at `to`. */
            replace?: boolean;
            /** @description Absolute path to move it to. */
            to: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Network policy of a sandbox. */
        Network: {
            /** @description Domains, CIDRs and optional ports; with mode `allowlist`. */
            allow?: string[] | null;
            /**
             * Format: uint32
             * @description Download limit, likewise.
             */
            bandwidth_down_mbit?: number | null;
            /**
             * Format: uint32
             * @description Upload limit in megabits per second; absent: no limit.
             */
            bandwidth_up_mbit?: number | null;
            /**
             * @description Mode of the policy: nothing, a list, or everything.
             * @default none
             */
            mode: components["schemas"]["Reach"];
        };
        /** @description What a new sandbox may reach. Fields that are absent are the template's, else the defaults. */
        NetworkRequest: {
            /** @description Domains, CIDRs and optional ports; with mode `allowlist`. */
            allow?: string[] | null;
            /**
             * Format: uint32
             * @description Download limit, likewise.
             */
            bandwidth_down_mbit?: number | null;
            /**
             * Format: uint32
             * @description Upload limit in megabits per second; `null`: no limit.
             */
            bandwidth_up_mbit?: number | null;
            /** @description Default: `none`. A given mode replaces the template's `allow` too. */
            mode?: components["schemas"]["Reach"] | null;
        };
        /** @description A new key. The token is shown only once; the server stores a hash of it. */
        NewKey: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Time when it expires; absent: never. */
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description Id. */
            id: string;
            /** @description Time of the last use. */
            last_used_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name. */
            name: string;
            /** @description Id of the organisation. */
            org: string;
            /** @description Time when it was revoked. */
            revoked_at?: components["schemas"]["Timestamp"] | null;
            /** @description Whether it is the first key of the server. */
            root: boolean;
            /** @description Id of the sandbox that the key is bound to; absent: valid for the whole organisation. */
            sandbox?: string | null;
            /** @description Permissions of the key. */
            scopes: components["schemas"]["Scope"][];
            /** @description The token to authenticate with. */
            token: string;
        };
        /** @description No query at all: whatever is given is refused. */
        NoQuery: Record<string, never>;
        /** @description A node: a further host. */
        Node: {
            /** @description Address at which the server reaches it. */
            address: string;
            /** @description Capacity and commitments, as it last reported. */
            capacity?: components["schemas"]["NodeCapacity"] | null;
            /** @description Time when its certificate expires. The server renews it before that. */
            certificate_expires_at: components["schemas"]["Timestamp"];
            /**
             * Format: int64
             * @description Clock of the node minus clock of the server, in milliseconds.
             */
            clock_skew_ms?: number | null;
            /** @description Takes no new sandboxes. */
            cordoned: boolean;
            /** @description Id of the host. */
            id: string;
            /** @description Time of the join. */
            joined_at: components["schemas"]["Timestamp"];
            /** @description Labels that sandboxes can ask for. */
            labels?: {
                [key: string]: string;
            };
            /** @description Time when it last answered. */
            last_seen_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name of the node. */
            name: string;
            /** @description Why it does not answer. */
            reason?: string | null;
            /** @description Whether it answers. */
            state: components["schemas"]["NodeState"];
            /** @description Taints: only sandboxes that tolerate all of them are placed there. */
            taints?: string[];
            /** @description Version of Cove on the node. */
            version?: string | null;
            /** @description Failure domain that it is in; absent: none was given. */
            zone?: string | null;
        };
        /** @description Capacity of a node and its commitments to sandboxes. */
        NodeCapacity: {
            /**
             * Format: double
             * @description CPUs that may be promised, overcommitment included.
             */
            cpu: number;
            /**
             * Format: uint64
             * @description Disk that may be promised, overcommitment included.
             */
            disk_bytes: number;
            /**
             * Format: uint64
             * @description Memory that may be promised, overcommitment included.
             */
            memory_bytes: number;
            /**
             * Format: double
             * @description CPUs that are promised.
             */
            promised_cpu: number;
            /**
             * Format: uint64
             * @description Disk that is promised.
             */
            promised_disk_bytes: number;
            /**
             * Format: uint64
             * @description Memory that is promised.
             */
            promised_memory_bytes: number;
            /**
             * Format: uint64
             * @description Running sandboxes.
             */
            running: number;
            /**
             * Format: uint64
             * @description Sandboxes on the node.
             */
            sandboxes: number;
            /** @description Isolation tiers that can be used there. */
            tiers: string[];
        };
        /**
         * @description Whether a node answers.
         *     - `joining`: It joined and has not answered yet.
         *     - `away`: It does not answer.
         * @enum {string}
         */
        NodeState: "ready" | "joining" | "away";
        /**
         * @description Whether object storage has a snapshot.
         *     - `none`: Only its host has it.
         *     - `uploading`: It is being uploaded.
         *     - `stored`: Object storage has all of it: it survives the loss of its host.
         * @enum {string}
         */
        ObjectCopy: "none" | "uploading" | "stored";
        /** @description Answer of `GET /.well-known/openid-configuration`. */
        OpenIdConfiguration: {
            /** @description Claims that tokens carry. */
            claims_supported: string[];
            /** @description Signature algorithms. */
            id_token_signing_alg_values_supported: string[];
            /** @description URL of the issuer. */
            issuer: string;
            /** @description URL of the public keys. */
            jwks_uri: string;
            /** @description Always `id_token`. */
            response_types_supported: string[];
            /** @description Always `public`. */
            subject_types_supported: string[];
        };
        /** @description An organisation. */
        Org: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Id. */
            id: string;
            /** @description Name, unique on the server. */
            name: string;
            /** @description Its quota. */
            quota: components["schemas"]["Amount"];
            /** @description Taints of nodes that its sandboxes may tolerate. */
            tolerations?: string[];
            /** @description Its current usage. */
            used: components["schemas"]["Amount"];
        };
        /** @description Some output. `text` when it is UTF-8, else `data` in base64. */
        OutputChunk: {
            /**
             * @description When it was written, by the sandbox's clock, if that was requested and is known. Sandboxes whose processes were
             *     captured by an earlier version do not know it.
             */
            at?: components["schemas"]["Timestamp"] | null;
            /** @description The output in base64, if it is not UTF-8. */
            data?: string | null;
            /**
             * Format: uint64
             * @description Requested bytes before `offset` that are no longer kept.
             */
            dropped?: number;
            /** @description What to do about something that was refused just now because the network is off; such a line has no output. */
            hint?: string | null;
            /**
             * Format: uint64
             * @description Offset of the first byte in the stream.
             */
            offset: number;
            /** @description The output, if it is UTF-8. */
            text?: string | null;
        };
        /** @description One line of a live answer (`Accept: application/x-ndjson`) to exec or output. */
        OutputEvent: {
            /** @description The process. */
            process: components["schemas"]["Process"];
            /**
             * @description Always `started`.
             * @constant
             */
            type: "started";
        } | components["schemas"]["OutputChunk"] | components["schemas"]["OutputChunk"] | components["schemas"]["Exit"] | {
            /** @description Why the stream ended. */
            error: components["schemas"]["ErrorDetail"];
            /**
             * @description Always `error`.
             * @constant
             */
            type: "error";
        };
        /** @description Query of `GET …/output` and of attach. */
        OutputQuery: {
            /**
             * @description Follow the output until the command ends. Without it, the answer is the output so far.
             * @default false
             */
            follow: boolean;
            /** @description Leave out what was written before this time. Output whose time is not known is not left out. */
            since?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint64
             * @description Offset of standard error to start at.
             * @default 0
             */
            stderr_from: number;
            /**
             * Format: uint64
             * @description Offset of standard output to start at; bytes that are no longer kept are reported as
             *     `dropped`.
             * @default 0
             */
            stdout_from: number;
            /** @description Report when output was written, in chunks of about the same time. */
            timestamps?: boolean;
        };
        /** @description One page of a list. */
        Page: {
            /** @description The items of this page. */
            items: components["schemas"]["Sandbox"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page10: {
            /** @description The items of this page. */
            items: components["schemas"]["Template"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page11: {
            /** @description The items of this page. */
            items: components["schemas"]["Key"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page12: {
            /** @description The items of this page. */
            items: components["schemas"]["SshKey"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page13: {
            /** @description The items of this page. */
            items: components["schemas"]["Secret"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page14: {
            /** @description The items of this page. */
            items: components["schemas"]["SecretUser"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page15: {
            /** @description The items of this page. */
            items: components["schemas"]["Approval"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page16: {
            /** @description The items of this page. */
            items: components["schemas"]["Org"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page17: {
            /** @description The items of this page. */
            items: components["schemas"]["AuditRecord"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page18: {
            /** @description The items of this page. */
            items: components["schemas"]["AuditChain"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page19: {
            /** @description The items of this page. */
            items: components["schemas"]["Runner"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page2: {
            /** @description The items of this page. */
            items: components["schemas"]["Snapshot"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page20: {
            /** @description The items of this page. */
            items: components["schemas"]["Node"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page21: {
            /** @description The items of this page. */
            items: components["schemas"]["Quarantined"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page3: {
            /** @description The items of this page. */
            items: components["schemas"]["Event"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page4: {
            /** @description The items of this page. */
            items: components["schemas"]["Process"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page5: {
            /** @description The items of this page. */
            items: components["schemas"]["Service"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page6: {
            /** @description The items of this page. */
            items: components["schemas"]["Port"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page7: {
            /** @description The items of this page. */
            items: components["schemas"]["CodeContext"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page8: {
            /** @description The items of this page. */
            items: components["schemas"]["Image"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. */
        Page9: {
            /** @description The items of this page. */
            items: components["schemas"]["Volume"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description Which page of a list. */
        PageQuery: {
            /** @description `next_cursor` of the previous page. */
            cursor?: string | null;
            /**
             * Format: uint32
             * @description Maximum number of items; default: 100.
             */
            limit?: number | null;
        };
        /** @description Changes of a node; what is absent stays. `cordoned` is changed in a request of its own. */
        PatchNode: {
            /** @description Whether it takes no new sandboxes. */
            cordoned?: boolean | null;
            /** @description Labels to set; `null` removes one. Others stay. */
            labels?: {
                [key: string]: string | null;
            };
            /** @description Taints to set (`true`) or to remove (`false`). Others stay. Sandboxes that are there stay too. */
            taints?: {
                [key: string]: boolean;
            };
            /** @description New zone; an empty text removes it. */
            zone?: string | null;
        };
        /** @description Body of `PATCH /v1/orgs/{org}`. */
        PatchOrg: {
            /** @description New quota; absent fields stay. */
            quota?: components["schemas"]["QuotaRequest"] | null;
            /**
             * @description Taints of nodes that its sandboxes may tolerate (`true`) or not any more (`false`). Others stay. Not together
             *     with `quota`.
             */
            tolerations?: {
                [key: string]: boolean;
            };
        };
        /** @description Body of `PATCH /v1/sandboxes/{id}`: what is absent stays. Labels and lifecycle are replaced whole. */
        PatchSandbox: {
            /**
             * Format: uint64
             * @description Refuse with `stale` if the sandbox has another generation.
             */
            expected_generation?: number | null;
            /** @description New labels; they replace all present ones. */
            labels?: {
                [key: string]: string;
            } | null;
            /** @description New lifecycle rules; they replace all present ones. */
            lifecycle?: components["schemas"]["Lifecycle"] | null;
            /** @description New name; `null` removes the name. */
            name?: string | null;
            /** @description New policy; it replaces the present one, and connections that it forbids are closed. */
            network?: components["schemas"]["Network"] | null;
            /** @description New limits. */
            resources?: components["schemas"]["ResourcesChange"] | null;
        };
        /** @description What a sandbox asks of its host. */
        Placement: {
            /** @description Labels that its host must have, with these values. */
            labels?: {
                [key: string]: string;
            };
            /** @description Which of several fitting hosts it goes to; default: `spread`. */
            strategy?: components["schemas"]["PlacementStrategy"];
            /** @description Taints that its host may have. The organisation needs the operator's permission for each. */
            tolerate?: string[];
            /** @description Zone that its host must be in. */
            zone?: string | null;
        };
        /**
         * @description How hosts of equal fit are filled.
         *     - `spread`: Evenly, over zones first.
         *     - `pack`: One after the other, so that others stay empty.
         * @enum {string}
         */
        PlacementStrategy: "spread" | "pack";
        /** @description A TCP port that a program in the sandbox listens on. */
        Port: {
            /** @description Address that the program listens on. */
            address: string;
            /**
             * Format: int32
             * @description Process id inside the sandbox.
             */
            pid?: number | null;
            /**
             * Format: uint32
             * @description Port number.
             */
            port: number;
            /** @description Name of the program. */
            process?: string | null;
            /** @description Anyone may open the preview, without a link. */
            public?: boolean;
            /** @description Address of its preview, if the server has previews. Private unless shared. */
            url?: string | null;
        };
        /** @description The address of a shared port. */
        PortShare: {
            /** @description Time when the share ends; absent: when it is revoked. */
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description For programs that do not resolve such names. */
            path_url: string;
            /** @description Anyone can open the preview, without a link. */
            public: boolean;
            /** @description Token of the link; programs may send it as `X-Cove-Token`. */
            token?: string | null;
            /** @description For browsers: a host of its own. Signed unless the port is public. */
            url: string;
        };
        /** @description The record of a command. */
        Process: {
            /** @description Program and arguments. */
            argv: string[];
            /**
             * Format: uint64
             * @description CPU time in milliseconds.
             */
            cpu_ms: number;
            /** @description Working directory. */
            cwd: string;
            /** @description Absent while it runs. */
            exit?: components["schemas"]["Exit"] | null;
            /** @description Id of the process record. */
            id: string;
            /** @description What kind of process it is. */
            kind: components["schemas"]["ProcessKind"];
            /**
             * Format: uint64
             * @description Memory in use.
             */
            memory_bytes: number;
            /**
             * @description The interface that started it, with the name of the session or context if it is of one. Absent where
             *     the sandbox began before owners were kept.
             */
            owner?: string | null;
            /**
             * Format: int32
             * @description Process id inside the sandbox.
             */
            pid: number;
            /** @description Size of its terminal, if it has one. */
            pty?: components["schemas"]["TerminalSize"] | null;
            /** @description Time when it started. */
            started_at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Bytes written to standard error so far.
             */
            stderr_bytes: number;
            /**
             * Format: uint64
             * @description Oldest offset of standard error that can still be read.
             */
            stderr_oldest: number;
            /**
             * Format: uint64
             * @description Bytes written to standard output so far.
             */
            stdout_bytes: number;
            /**
             * Format: uint64
             * @description Oldest offset of standard output that can still be read.
             */
            stdout_oldest: number;
            /** @description Tag that the caller gave it. */
            tag?: string | null;
            /** @description User that it runs as. */
            user: string;
            /**
             * Format: uint32
             * @description Connections attached to its output now.
             */
            viewers: number;
        };
        /**
         * @description What a process is. It follows from the request that started it.
         *     - `command`: A client waits for its end: an exec. Its sandbox is never idle.
         *     - `terminal`: It has a terminal. Its sandbox is idle while no client is attached.
         *     - `code_context`: The interpreter of a code context.
         *     - `dialect_session`: A shell that another interface keeps for the commands of a session.
         *     - `service`: It runs in the background.
         * @enum {string}
         */
        ProcessKind: "command" | "terminal" | "code_context" | "dialect_session" | "service";
        /** @description One sandbox, snapshot or volume in quarantine. */
        Quarantined: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Id of the sandbox, snapshot or volume. */
            id: string;
            /** @description Its kind. */
            kind: components["schemas"]["QuarantinedKind"];
            /** @description Its name, if known. */
            name?: string | null;
            /** @description Id of the organisation that owns it, if the database knows it. */
            org?: string | null;
            /** @description Why it is in quarantine. */
            reason: string;
            /** @description The sandbox that a snapshot was taken of. */
            sandbox?: string | null;
            /** @description The state of a sandbox. */
            state?: string | null;
        };
        /**
         * @description Kind of a quarantined resource.
         * @enum {string}
         */
        QuarantinedKind: "sandbox" | "snapshot" | "volume";
        /** @description Limits of an organisation; absent fields have their default, or stay. */
        QuotaRequest: {
            /**
             * Format: double
             * @description Maximum number of CPUs of all sandboxes.
             */
            cpu?: number | null;
            /**
             * Format: uint64
             * @description Maximum disk of all sandboxes, in MiB.
             */
            disk_mb?: number | null;
            /**
             * Format: uint64
             * @description Maximum memory of all sandboxes, in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: uint64
             * @description Maximum number of sandboxes.
             */
            sandboxes?: number | null;
        };
        /**
         * @description Mode of a network policy.
         *     - `none`: Loopback only.
         *     - `allowlist`: Only what `allow` lists.
         *     - `open`: The internet, but never the host, its neighbours or private ranges.
         * @enum {string}
         */
        Reach: "none" | "allowlist" | "open";
        /** @description Query of `GET …/files/archive`. */
        ReadArchive: {
            /** @description Absolute path of the file or directory to pack. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `GET …/files`. Ranges come by the `Range` header. */
        ReadFile: {
            /** @description Absolute path. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `DELETE …/files`. */
        RemoveFile: {
            /** @description Absolute path. */
            path: string;
            /** @description Also remove directories that are not empty. */
            recursive?: boolean;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Answer of `DELETE /v1/secrets/{secret}`. */
        RemovedSecret: {
            /**
             * @description Ids of hosts that could not be reached. The server sends them the change again until they answer; until then
             *     their sandboxes can use the secret.
             * @default []
             */
            hosts_pending: string[];
            /** @description Name of the secret. */
            name: string;
        };
        /** @description Body of `POST /v1/leases/renew`. */
        RenewLeases: {
            /** @description Holder of the leases. */
            holder: string;
            /** @description Ids of the sandboxes. */
            sandboxes: string[];
        };
        /** @description Answer of a renewal. */
        RenewedLeases: {
            /** @description Ids of sandboxes that no longer exist or whose lease this holder does not have. */
            lost: string[];
        };
        /** @description A live change of limits; absent fields stay. */
        ResourcesChange: {
            /**
             * Format: double
             * @description CPUs, in fractions.
             */
            cpu?: number | null;
            /**
             * Format: uint64
             * @description Disk in MiB.
             */
            disk_mb?: number | null;
            /**
             * Format: uint64
             * @description How far memory may grow by itself, in MiB.
             */
            memory_max_mb?: number | null;
            /**
             * Format: uint64
             * @description Memory in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: uint64
             * @description Maximum number of processes and threads.
             */
            pids?: number | null;
        };
        /** @description Requested limits; absent fields have their default. */
        ResourcesRequest: {
            /**
             * Format: double
             * @description CPUs, in fractions.
             */
            cpu?: number | null;
            /**
             * Format: uint64
             * @description Disk in MiB.
             */
            disk_mb?: number | null;
            /**
             * Format: uint64
             * @description Disk reads in MB per second; absent: no limit.
             */
            io_read_mb_s?: number | null;
            /**
             * Format: uint64
             * @description Disk writes in MB per second; absent: no limit.
             */
            io_write_mb_s?: number | null;
            /**
             * Format: uint64
             * @description Limit up to which memory may grow by itself, in MiB; absent: it does not grow.
             */
            memory_max_mb?: number | null;
            /**
             * Format: uint64
             * @description Memory in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: uint64
             * @description Maximum number of open files per process.
             */
            open_files?: number | null;
            /**
             * Format: uint64
             * @description Maximum number of processes and threads.
             */
            pids?: number | null;
        };
        /** @description Limits in force. */
        ResourcesView: {
            /**
             * Format: double
             * @description CPUs, in fractions.
             */
            cpu: number;
            /**
             * Format: uint64
             * @description Disk in MiB.
             */
            disk_mb: number;
            /**
             * Format: uint64
             * @description Disk reads in MB per second; absent: no limit.
             */
            io_read_mb_s?: number | null;
            /**
             * Format: uint64
             * @description Disk writes in MB per second; absent: no limit.
             */
            io_write_mb_s?: number | null;
            /**
             * Format: uint64
             * @description How far memory may grow by itself, in MiB.
             */
            memory_max_mb?: number | null;
            /**
             * Format: uint64
             * @description Memory in MiB.
             */
            memory_mb: number;
            /**
             * Format: uint64
             * @description Maximum number of open files per process.
             */
            open_files: number;
            /**
             * Format: uint64
             * @description Maximum number of processes and threads.
             */
            pids: number;
        };
        /**
         * @description What happens when a service ends by itself.
         *     - `no`: It is not started again before the sandbox is.
         *     - `on_failure`: It is started again if it failed: its exit code is not 0, or it could not be started.
         *     - `always`: It is started again.
         * @enum {string}
         */
        RestartPolicy: "no" | "on_failure" | "always";
        /** @description Body of `POST …/rollback`. */
        Rollback: {
            /** @description Restore its processes too; refused if it has no memory. */
            memory?: boolean;
            /** @description Id or name. */
            snapshot: string;
        };
        /** @description Answer of a rollback. */
        RolledBack: {
            /** @description Snapshot of the previous state; rolling back to it undoes the rollback. */
            kept: components["schemas"]["Snapshot"];
            /** @description The sandbox after the rollback. */
            sandbox: components["schemas"]["Sandbox"];
        };
        /** @description Body of `POST /v1/identity/rotate`. */
        RotateIdentityKeys: {
            /**
             * @description Sign with the new key now and withdraw all others: for keys that somebody else may have.
             *     Tokens they signed are refused from then on. Default: false; the new key signs after an hour
             *     and tokens stay valid.
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
            /** @description The code to run. */
            code: string;
            /** @description Id of a context; default: the default context of the language, which the first run creates. */
            context?: string | null;
            /** @description Default: that of the context; Python where neither is given. */
            language?: components["schemas"]["CodeLanguage"] | null;
            /**
             * Format: uint64
             * @description Time in milliseconds after which the code is interrupted; variables are kept.
             */
            timeout_ms?: number | null;
        };
        /** @description A host that runs sandboxes: its resources, its commitments and its problems. */
        Runner: {
            /**
             * Format: uint32
             * @description Number of CPUs.
             */
            cpus: number;
            /**
             * Format: uint64
             * @description Size of the storage pool.
             */
            disk_bytes: number;
            /**
             * Format: uint64
             * @description Free space in the storage pool.
             */
            disk_free_bytes: number;
            /** @description Results of the checks of the host. */
            findings: components["schemas"]["Finding"][];
            /**
             * Format: uint64
             * @description Memory of the host.
             */
            memory_bytes: number;
            /** @description Name of the host. */
            name: string;
            /**
             * Format: double
             * @description CPUs promised to sandboxes.
             */
            promised_cpu: number;
            /**
             * Format: uint64
             * @description Disk promised to sandboxes.
             */
            promised_disk_bytes: number;
            /**
             * Format: uint64
             * @description Memory promised to sandboxes.
             */
            promised_memory_bytes: number;
            /**
             * Format: uint64
             * @description Number of running sandboxes.
             */
            running: number;
            /**
             * Format: uint64
             * @description Number of sandboxes.
             */
            sandboxes: number;
            /** @description Isolation tiers. */
            tiers: components["schemas"]["Tier"][];
            /**
             * Format: uint64
             * @description Number of sandboxes prepared in advance; 0: none.
             * @default 0
             */
            warm: number;
        };
        /** @description A sandbox. */
        Sandbox: {
            /** @description What executes its instructions: hardware virtualisation, or emulation in software. With isolation `vm` alone. */
            accel?: components["schemas"]["Accel"] | null;
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Environment variables of all commands. */
            env: {
                [key: string]: string;
            };
            /** @description The snapshot that it started from; absent if it started from an image. */
            from_snapshot?: string | null;
            /**
             * Format: uint64
             * @description Increases with every change.
             */
            generation: number;
            /** @description The snapshot that its current state is based on. */
            head?: string | null;
            /** @description Id. */
            id: string;
            /** @description Its identity; absent without one. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description Image, as requested. */
            image: string;
            /** @description Id of the image, once the host has resolved the name. */
            image_id?: string | null;
            /** @description Isolation tier; never `auto`. */
            isolation: string;
            /** @description Labels. */
            labels: {
                [key: string]: string;
            };
            /** @description Time of the last activity; idle times count from here. */
            last_active_at: components["schemas"]["Timestamp"];
            /** @description Its lease; absent without one. */
            lease?: components["schemas"]["Lease"] | null;
            /** @description Lifecycle rules. */
            lifecycle: components["schemas"]["Lifecycle"];
            /** @description Name, unique in the organisation. */
            name?: string | null;
            /** @description Network policy. */
            network: components["schemas"]["Network"];
            /** @description Programs cannot gain privileges through setuid. */
            no_new_privs: boolean;
            /** @description Which hosts it may be on. */
            placement?: components["schemas"]["Placement"];
            /** @description Why it is in this state, if that is not obvious. */
            reason?: string | null;
            /** @description Limits. */
            resources: components["schemas"]["ResourcesView"];
            /** @description Secrets that it may use by placeholders. */
            secrets?: components["schemas"]["SecretGrant"][];
            /** @description Time of the last start. */
            started_at?: components["schemas"]["Timestamp"] | null;
            /** @description State. */
            state: components["schemas"]["SandboxState"];
            /** @description Time of the stop; absent unless it is stopped or has failed. */
            stopped_at?: components["schemas"]["Timestamp"] | null;
            /** @description Time of the last change. */
            updated_at: components["schemas"]["Timestamp"];
            /** @description User that commands run as, if one was given. */
            user?: string | null;
            /** @description Mounted volumes; no part of its disk, nor of its snapshots. */
            volumes?: components["schemas"]["Mount"][];
            /** @description Warnings for the caller; only in the answer to a create. */
            warnings?: string[];
            /** @description Working directory of commands, if one was given. */
            workdir?: string | null;
        };
        /**
         * @description State of a sandbox.
         *     - `creating`: Being created or started.
         *     - `frozen`: Its processes are suspended in memory; a thaw takes about a millisecond.
         *     - `pausing`: Its memory is being saved to disk; it keeps running if that fails.
         *     - `paused`: No processes; memory and disk are kept on disk.
         *     - `resuming`: Its memory is being restored from disk.
         *     - `restoring`: Being rolled back to a snapshot.
         *     - `stopping`: Its processes have received SIGTERM and have time to end.
         *     - `stopped`: No processes; the disk is kept.
         *     - `failed`: Could not be created or started; the reason is in its events.
         * @enum {string}
         */
        SandboxState: "running" | "deleting" | "gone" | "creating" | "frozen" | "pausing" | "paused" | "resuming" | "restoring" | "stopping" | "stopped" | "failed";
        /** @description Usage of one sandbox. */
        SandboxUsage: {
            /**
             * Format: double
             * @description CPU time in seconds.
             */
            cpu_seconds: number;
            /**
             * Format: double
             * @description Disk in GB times hours.
             */
            disk_gb_hours: number;
            /**
             * Format: uint64
             * @description Bytes sent over the network.
             */
            egress_bytes: number;
            /**
             * Format: double
             * @description Part of the time that is estimated from dates because the host was restarted. The rest is
             *     measured.
             * @default 0
             */
            estimated_seconds: number;
            /**
             * Format: double
             * @description Memory in GB times seconds.
             */
            memory_gb_seconds: number;
            /** @description Id of the sandbox. */
            sandbox: string;
        };
        /**
         * @description What a key may do. Each scope includes those before it.
         *     - `read`: View sandboxes, their state, events and metrics, images and usage. Nothing inside a sandbox.
         *     - `use`: Work in existing sandboxes: commands, files, ports; start stopped ones.
         *     - `manage`: Create, change, stop and delete sandboxes; fetch images.
         *     - `admin`: Keys and audit records. In the default organisation also the installation: organisations, quotas, shared images, the host.
         * @enum {string}
         */
        Scope: "read" | "use" | "manage" | "admin";
        /** @description A secret without its value. */
        Secret: {
            /**
             * @description Each use needs an approval.
             * @default false
             */
            ask: boolean;
            /**
             * @description What requests that use it may use in all, and what was used.
             * @default []
             */
            budgets: components["schemas"]["SecretBudget"][];
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Hosts that it may be sent to. */
            hosts: string[];
            /**
             * @description Only in the answer of setting it: ids of hosts that could not be reached. The server sends them the change again
             *     until they answer; until then the previous version is in force there.
             */
            hosts_pending?: string[];
            /** @description Id. */
            id: string;
            /** @description Time of the last use. */
            last_used_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name, unique in the organisation. */
            name: string;
            /** @description Time when this version was set. */
            updated_at: components["schemas"]["Timestamp"];
            /** @description Place in the request: `bearer`, `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE` or `exposed`. */
            use: string;
            /**
             * Format: uint64
             * @description Requests that it was put into.
             */
            uses: number;
            /**
             * Format: uint64
             * @description Version number; increases by one whenever it is set.
             */
            version: number;
        };
        /** @description A limit of a secret, and what was used of it. */
        SecretBudget: {
            /**
             * Format: uint64
             * @description The most that may be used.
             */
            max: number;
            /** @description What is counted. */
            of: components["schemas"]["BudgetUnit"];
            /** @description Who shares it. */
            per: components["schemas"]["BudgetScope"];
            /** @description When `used` begins again at 0; absent where it never does. */
            renews_at?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint64
             * @description What was used, with what is reserved for requests under way. Absent for `sandbox` where no sandbox is meant.
             */
            used?: number | null;
        };
        /** @description A secret in a sandbox: the place of its placeholder. */
        SecretGrant: {
            /** @description The variable that holds the placeholder, or the value of an exposed secret. */
            env?: string | null;
            /** @description Put the value itself there, not a placeholder. The use of the secret must be `exposed`. */
            exposed?: boolean;
            /** @description The file that holds the placeholder, or the value of an exposed secret: an absolute path. */
            file?: string | null;
            /** @description The secret's name. */
            name: string;
        };
        /** @description A limit on what requests with a secret may use. */
        SecretLimit: {
            /**
             * Format: uint64
             * @description The most that may be used.
             */
            max: number;
            /** @description What is counted. */
            of: components["schemas"]["BudgetUnit"];
            /** @description Who shares it. */
            per: components["schemas"]["BudgetScope"];
        };
        /** @description A sandbox that used a secret. */
        SecretUser: {
            /**
             * @description What it used of the limits that each sandbox has by itself.
             * @default []
             */
            budgets: components["schemas"]["SecretBudget"][];
            /** @description Time of the last use. */
            last_used_at: components["schemas"]["Timestamp"];
            /** @description Id of the sandbox. */
            sandbox: string;
            /**
             * Format: uint64
             * @description Requests that the secret was put into.
             */
            uses: number;
        };
        /** @description A service of a sandbox. */
        Service: {
            /** @description Its program and arguments, if it has no command line. */
            argv?: string[] | null;
            /** @description Its command line, if it has one. */
            command?: string | null;
            /** @description Working directory, if it is not that of the sandbox. */
            cwd?: string | null;
            /** @description Why it could not be started the last time. */
            error?: string | null;
            /** @description How its last run ended. */
            last_exit?: components["schemas"]["Exit"] | null;
            /** @description Name of the service. */
            name: string;
            /** @description Id of its process, which is the same for all its runs; its output is that of the process. */
            process: string;
            /** @description When it is started again after its end. */
            restart: components["schemas"]["RestartPolicy"];
            /**
             * Format: uint64
             * @description How often it was started again since the sandbox was started.
             */
            restarts: number;
            /** @description State now. */
            state: components["schemas"]["ServiceState"];
            /** @description User, if it is not that of the sandbox. */
            user?: string | null;
        };
        /**
         * @description State of a service.
         *     - `pending`: Not started yet since the sandbox was.
         *     - `running`: Its process runs.
         *     - `waiting`: It ended or could not be started, and is started again after a pause.
         *     - `ended`: It ended, and its policy does not start it again.
         * @enum {string}
         */
        ServiceState: "pending" | "running" | "waiting" | "ended";
        /** @description Body of `POST /v1/secrets`: the first version of a secret, or its next one. */
        SetSecret: {
            /**
             * @description Each use needs an approval.
             * @default false
             */
            ask: boolean;
            /**
             * @description Hosts that it may be sent to: `api.example.com`, or `git.example.com:8443`. None for the use
             *     `exposed`.
             * @default []
             */
            hosts: string[];
            /**
             * @description What requests that use it may use in all, one limit for each unit and scope.
             * @default []
             */
            limits: components["schemas"]["SecretLimit"][];
            /** @description Name, unique in the organisation. */
            name: string;
            /**
             * @description Where in a request it belongs: `bearer`, `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE` or `exposed`.
             * @default bearer
             */
            use: string;
            /** @description Value: printable ASCII. No call returns it. */
            value: string;
        };
        /** @description Shares a port: with a signed link, or publicly. */
        SharePort: {
            /**
             * Format: uint64
             * @description Seconds until the share ends; default: an hour for a link, never for a public port.
             */
            expires_s?: number | null;
            /** @description Anyone may open the preview, without a link. */
            public?: boolean;
        };
        /** @description Body of `POST …/signal`. */
        SignalProcess: {
            /**
             * @description Send it to the process alone instead of its whole group.
             * @default false
             */
            only_leader: boolean;
            /** @description `TERM`, `SIGTERM` or a number. */
            signal: string;
        };
        /** @description One state of a sandbox, with memory or without. It never changes. */
        Snapshot: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Time of deletion; in timelines only. */
            deleted_at?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint64
             * @description Bytes that deleting it would free.
             */
            exclusive_bytes: number;
            /** @description Id. */
            id: string;
            /** @description Id of its image. */
            image_id?: string | null;
            /** @description Why it was taken. */
            kind: components["schemas"]["SnapshotKind"];
            /** @description It includes processes and memory. */
            memory: boolean;
            /**
             * Format: uint64
             * @description Bytes of its memory, part of `exclusive_bytes`.
             */
            memory_bytes: number;
            /** @description Name, unique in the organisation. */
            name?: string | null;
            /** @description Whether object storage has it. */
            object_storage?: components["schemas"]["ObjectCopy"] | null;
            /** @description Whether the host has it. If not, the next use fetches it from object storage. */
            on_host?: boolean | null;
            /** @description The snapshot that the sandbox's state was based on. */
            parent?: string | null;
            /** @description For the state saved by a rollback: the snapshot that the sandbox was rolled back to. */
            rolled_back_to?: string | null;
            /** @description Id of its sandbox, which may be deleted; absent for an import. */
            sandbox?: string | null;
            /**
             * Format: uint64
             * @description Bytes that it shares with others.
             */
            shared_bytes: number;
            /**
             * Format: uint64
             * @description Microseconds for which the sandbox was suspended for it.
             */
            stopped_us: number;
            /** @description Why its memory cannot be restored on this host; absent if it can, or if it has none. */
            unfit?: string | null;
            /**
             * @description Volumes that its sandbox had. Their content is not in the snapshot; a fork mounts the same
             *     volumes.
             */
            volumes_not_included?: components["schemas"]["Mount"][];
        };
        /**
         * @description Why a snapshot was taken. All but the first and the last come and go by themselves.
         *     - `manual`: A caller requested it.
         *     - `auto`: `auto_snapshot` took it.
         *     - `fork`: The common state of the copies of a fork.
         *     - `rollback`: The state of a sandbox before a rollback.
         *     - `import`: It was imported from a file.
         *     - `build`: A step of a template's build. It goes when neither the cache of builds nor a template has it.
         * @enum {string}
         */
        SnapshotKind: "manual" | "auto" | "fork" | "rollback" | "import" | "build";
        /** @description Access to one sandbox over SSH. The token is the password. */
        SshAccess: {
            /** @description Command line for a terminal. */
            command: string;
            /** @description Time when it expires. */
            expires_at: components["schemas"]["Timestamp"];
            /** @description Fingerprint of the host key. */
            fingerprint: string;
            /** @description Host name of the SSH server. */
            host: string;
            /** @description Public host key of the SSH server. */
            host_key: string;
            /** @description A line for `known_hosts`. */
            known_hosts: string;
            /**
             * Format: uint16
             * @description Port of the SSH server.
             */
            port: number;
            /** @description The token, to be used as the password. */
            token: string;
            /** @description User name for the login; the prefix `USER+` selects the user in the sandbox. */
            user: string;
        };
        /** @description Answer of `GET /v1/ssh`: address and host key of the gateway. */
        SshHost: {
            /** @description Whether this server has a gateway; the rest is absent without one. */
            available: boolean;
            /** @description Fingerprint of the host key. */
            fingerprint?: string | null;
            /** @description Host name of the SSH server. */
            host?: string | null;
            /** @description Public host key of the SSH server. */
            host_key?: string | null;
            /** @description A line for `known_hosts`. */
            known_hosts?: string | null;
            /**
             * Format: uint16
             * @description Port of the SSH server.
             */
            port?: number | null;
        };
        /** @description A public key for the organisation's sandboxes over SSH. */
        SshKey: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Time when it expires. */
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description Fingerprint of the key. */
            fingerprint: string;
            /** @description Id. */
            id: string;
            /** @description Name. */
            name: string;
            /** @description The public key, in the format of OpenSSH. */
            public_key: string;
        };
        /** @description Body of `POST …/processes`: as exec, but in the background, with an open input or a terminal. */
        StartProcess: {
            /** @description Program and arguments, run without a shell. */
            argv?: string[] | null;
            /** @description Command line for the user's login shell. */
            command?: string | null;
            /** @description Working directory; default: that of the sandbox. */
            cwd?: string | null;
            /** @description Environment variables. */
            env?: {
                [key: string]: string;
            };
            /** @description Start it in a terminal of this size. */
            pty?: components["schemas"]["TerminalSize"] | null;
            /**
             * Format: uint64
             * @description Bytes of each stream that are kept for later readers.
             */
            ring_bytes?: number | null;
            /** @description Keep its input open for `POST …/stdin` and attach. A terminal always has one. */
            stdin_open?: boolean;
            /** @description A word for listings; it does not change the command. */
            tag?: string | null;
            /**
             * Format: uint64
             * @description Time in milliseconds after which the command's process group is killed.
             */
            timeout_ms?: number | null;
            /** @description User name or number, optionally with `:group`. */
            user?: string | null;
        };
        /** @description Body of `POST …/services`. Either `command` or `argv`. */
        StartService: {
            /** @description Program and arguments, run without a shell. */
            argv?: string[] | null;
            /** @description Command line for the user's login shell. */
            command?: string | null;
            /** @description Working directory; default: that of the sandbox. */
            cwd?: string | null;
            /**
             * @description Environment variables. They are kept on the sandbox's disk; use the sandbox's secrets for values that must
             *     not be there.
             */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Name of the service, unique in the sandbox: lowercase letters, digits and dashes.
             * @default
             */
            name: string;
            /**
             * @description When it is started again after its end; default: `on_failure`.
             * @default on_failure
             */
            restart: components["schemas"]["RestartPolicy"];
            /** @description User name or number, optionally with `:group`. */
            user?: string | null;
        };
        /** @description Query of `GET …/files/stat`. */
        StatFile: {
            /** @description Describe the target of a symlink instead of the link. */
            follow?: boolean;
            /** @description Absolute path. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
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
        /** @description Body of `POST …/stop`; optional. */
        StopSandbox: {
            /**
             * Format: uint64
             * @description Time processes get between SIGTERM and SIGKILL. Absent: the server's setting `stop_grace_ms`, 10 seconds by default.
             */
            grace_ms?: number | null;
        };
        /** @description Body of `POST …/snapshots`; optional. */
        TakeSnapshot: {
            /** @description Return only once object storage has it. Needs a server with object storage. */
            durable?: boolean;
            /** @description Include processes and memory. */
            memory?: boolean;
            /** @description Unique among the organisation's snapshots: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
        };
        /** @description One version of a template. Only its tags can change. */
        Template: {
            /** @description What executes the instructions of its sandboxes; with isolation `vm` alone. */
            accel?: components["schemas"]["Accel"] | null;
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Environment variables of all commands. */
            env: {
                [key: string]: string;
            };
            /** @description Id. */
            id: string;
            /** @description Other image settings of the Dockerfile; absent if it was not built from one. */
            image?: components["schemas"]["ImageConfig"] | null;
            /** @description Isolation tier. */
            isolation: string;
            /** @description Lifecycle rules. */
            lifecycle: components["schemas"]["Lifecycle"];
            /** @description Its snapshot was lost: no sandbox can start from it. */
            lost?: boolean;
            /** @description Sandboxes continue the snapshot's processes. */
            memory: boolean;
            /** @description Name, unique in the organisation. */
            name: string;
            /** @description Network policy. */
            network: components["schemas"]["Network"];
            /** @description Programs cannot gain privileges through setuid. */
            no_new_privs: boolean;
            /** @description Which hosts sandboxes from it may be on. */
            placement?: components["schemas"]["Placement"];
            /** @description Limits. */
            resources: components["schemas"]["ResourcesView"];
            /** @description Id of the snapshot that sandboxes start from. */
            snapshot: string;
            /** @description Tags of this version. */
            tags: string[];
            /** @description User that commands run as. */
            user?: string | null;
            /**
             * Format: uint64
             * @description Version number, from 1 for each name.
             */
            version: number;
            /** @description Volumes that all sandboxes from it mount. */
            volumes?: components["schemas"]["Mount"][];
            /** @description Working directory of commands. */
            workdir?: string | null;
        };
        /** @description Defaults of sandboxes from the template. */
        TemplateDefaults: {
            /** @description Variables in addition to those of the snapshot's sandbox. */
            env?: {
                [key: string]: string;
            };
            /** @description Lifecycle rules. */
            lifecycle?: components["schemas"]["Lifecycle"] | null;
            /** @description Network policy. */
            network?: components["schemas"]["Network"] | null;
            /** @description Limits. */
            resources?: components["schemas"]["ResourcesRequest"] | null;
            /** @description User that commands run as. */
            user?: string | null;
            /**
             * @description Volumes to mount; sandboxes from the template share them. Volumes of the snapshot's sandbox
             *     are not included.
             */
            volumes?: components["schemas"]["Mount"][];
            /** @description Working directory of commands. */
            workdir?: string | null;
        };
        /** @description Size of a terminal. */
        TerminalSize: {
            /**
             * Format: uint32
             * @description Columns.
             */
            cols: number;
            /**
             * Format: uint32
             * @description Rows.
             */
            rows: number;
        };
        /** @description An isolation tier of a host. */
        Tier: {
            /** @description Features of the tier, like `snapshot` or `memory`. */
            capabilities: string[];
            /** @description Name of the tier. */
            name: string;
            /** @description Whether sandboxes of this tier can run; virtual machines: without emulation. */
            usable: boolean;
        };
        /** @description The tree of snapshots and forks of a sandbox. */
        Timeline: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Sandboxes that started from one of its snapshots, oldest first. */
            forks: components["schemas"]["TimelineFork"][];
            /** @description The snapshot that it started from; absent if it started from an image. */
            from_snapshot?: string | null;
            /** @description The snapshot that its current state is based on. */
            head?: string | null;
            /** @description Name of the sandbox. */
            name?: string | null;
            /** @description Id of the sandbox. */
            sandbox: string;
            /**
             * @description Its snapshots and those that they are based on, oldest first; deleted ones too, while they
             *     are recorded.
             */
            snapshots: components["schemas"]["Snapshot"][];
            /** @description State of the sandbox. */
            state: components["schemas"]["SandboxState"];
            /** @description There are more snapshots. */
            truncated: boolean;
        };
        /** @description A sandbox that was made from one of the snapshots. */
        TimelineFork: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Id of the snapshot it was made from. */
            from_snapshot: string;
            /** @description Name of the sandbox. */
            name?: string | null;
            /** @description Id of the sandbox. */
            sandbox: string;
            /** @description State of the sandbox. */
            state: components["schemas"]["SandboxState"];
        };
        /**
         * Format: date-time
         * @description A moment, in the format of RFC 3339.
         */
        Timestamp: string;
        /**
         * @description Answer of `GET /v1/usage`: the organisation's total, which includes the disk of its snapshots, and a
         *     page of its sandboxes, deleted ones too.
         */
        Usage: {
            /** @description Usage of each sandbox. */
            items: components["schemas"]["SandboxUsage"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
            /** @description Usage of the organisation. */
            total: components["schemas"]["UsageFigures"];
        };
        /** @description Usage. */
        UsageFigures: {
            /**
             * Format: double
             * @description CPU time in seconds.
             */
            cpu_seconds: number;
            /**
             * Format: double
             * @description Disk in GB times hours.
             */
            disk_gb_hours: number;
            /**
             * Format: uint64
             * @description Bytes sent over the network.
             */
            egress_bytes: number;
            /**
             * Format: double
             * @description Part of the time that is estimated from dates because the host was restarted. The rest is
             *     measured.
             * @default 0
             */
            estimated_seconds: number;
            /**
             * Format: double
             * @description Memory in GB times seconds.
             */
            memory_gb_seconds: number;
        };
        /** @description Query of `GET /v1/usage`. */
        UsageQuery: {
            /** @description `next_cursor` of the previous page. */
            cursor?: string | null;
            /** @description Start of the period, in whole hours; absent: the beginning. */
            from?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint32
             * @description Maximum number of items; default: 100.
             */
            limit?: number | null;
            /** @description Only this sandbox, over its whole life. */
            sandbox?: string | null;
            /** @description End of the period (exclusive), in whole hours; absent: now. */
            to?: components["schemas"]["Timestamp"] | null;
        };
        /** @description A volume. */
        Volume: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description The volume that it is a copy of, which may be deleted. */
            from?: string | null;
            /** @description Id. */
            id: string;
            /** @description Name, unique in the organisation. */
            name: string;
            /** @description It cannot be written to. */
            read_only: boolean;
            /**
             * Format: uint64
             * @description Size in MiB.
             */
            size_mb: number;
            /** @description Ids of the sandboxes that mount it, running or not; at most 100. Only where one volume is shown. */
            used_by?: string[] | null;
            /**
             * Format: uint64
             * @description Bytes in use, measured by the host up to a minute ago.
             */
            used_bytes: number;
        };
        /** @description Query of `GET …/files/watch`. */
        WatchFiles: {
            /** @description Absolute path of a file or directory. */
            path: string;
            /** @description Watch everything below the directory too. */
            recursive?: boolean;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `PUT …/files/archive`; the body is a tar, unpacked below `path` and nowhere else. */
        WriteArchive: {
            /** @description Keep the owners that the archive names. */
            keep_owner?: boolean;
            /** @description Absolute path of the directory to unpack into. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /**
         * @description Query of `PUT …/files`; the body is the contents. Replaces the file in one step unless `append`
         *     or `at` is given.
         */
        WriteFile: {
            /** @description Append to the existing file. */
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
            /** @description Create missing parent directories. */
            parents?: boolean;
            /** @description Absolute path. */
            path: string;
            /** @description Flush to the disk before answering. */
            sync?: boolean;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description The result of a write or of an unpacked archive. */
        Written: {
            /**
             * Format: uint64
             * @description Bytes written.
             */
            bytes: number;
            /**
             * Format: uint64
             * @description Files, directories and links written.
             */
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
