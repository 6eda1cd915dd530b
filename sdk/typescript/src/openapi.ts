// Written by tools/generate.mjs from the server's OpenAPI document. Do not edit.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * @description What executes the instructions of a virtual machine.
         *     - `kvm`: The processor, by hardware virtualisation.
         *     - `software`: QEMU, in software: slow, and had by name alone.
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
             * @description Absent: until removed.
             */
            expires_in_s?: number | null;
            /** @description Name of the key. */
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
            /** @description Time at which it is removed, with what was decided. */
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
            /** @description What was decided. */
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
         *     - `deny`: The request is refused; what was approved before is revoked.
         * @enum {string}
         */
        ApprovalDecision: "approve" | "deny";
        /**
         * @description What was decided.
         *     - `pending`: Nothing yet.
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
             * @description Offset of standard error to begin at.
             * @default 0
             */
            stderr_from: number;
            /**
             * Format: uint64
             * @description Offset of standard output to begin at.
             * @default 0
             */
            stdout_from: number;
        };
        /** @description An organisation's chain of audit records: where it begins, where it ends, and whether it holds. */
        AuditChain: {
            /** @description The hash of that record. */
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
            /** @description The hash of the last record. Keep it elsewhere to detect that the whole chain was rewritten. */
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
            /** @description Name of the operation, like `sandbox.create`. */
            action: string;
            /** @description Time of the call. */
            at: components["schemas"]["Timestamp"];
            /** @description More about the operation. */
            detail?: string | null;
            /**
             * @description SHA-256 over the hash of the record before it and its own fields; absent in records from before
             *     there were chains.
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
            /** @description `ok` or the code of the error; of calls into a sandbox also `pending`, `not_done` or `unknown`. */
            result: string;
            /** @description Address that the call came from. */
            source?: string | null;
            /** @description What the operation was applied to. */
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
             * @description Steps taken from an earlier build.
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
            /** @description How far it is. */
            state: components["schemas"]["BuildState"];
            /**
             * Format: uint64
             * @description Steps begun so far. Only steps that change files count: `RUN`, `COPY`, `ADD` and `WORKDIR`.
             */
            steps: number;
            /** @description Id of the version that it made. */
            template?: string | null;
        };
        /** @description What was forgotten. */
        BuildCacheCleared: {
            /**
             * Format: uint64
             * @description States of steps.
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
             * @description Milliseconds since it began.
             */
            ms: number;
            /**
             * Format: uint64
             * @description Number of the step, from 1.
             */
            number: number;
            /** @description How far it is. */
            state: components["schemas"]["BuildStepState"];
            /** @description The instruction. */
            text: string;
            /**
             * Format: uint64
             * @description Steps in all, as far as it is known.
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
             * @description So many bytes.
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
         * @description - `waiting`: Its context is not there yet.
         * @enum {string}
         */
        BuildState: "running" | "done" | "failed" | "cancelled" | "waiting";
        /**
         * @description How far a step is.
         *     - `started`: It runs.
         *     - `cached`: An earlier build had made it.
         *     - `done`: It succeeded.
         *     - `failed`: It failed, and the build with it.
         * @enum {string}
         */
        BuildStepState: "started" | "cached" | "done" | "failed";
        /** @description Builds, newest first. */
        Builds: {
            /** @description The builds that are remembered. */
            items: components["schemas"]["Build"][];
        };
        /**
         * @description What happened to a watched path.
         *     - `ready`: The watch stands; every later change is reported.
         *     - `overflow`: Changes came faster than they could be reported; look again.
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
        /** @description Something that keeps what code defined, from run to run. It is a process of the sandbox. */
        CodeContext: {
            /** @description Working directory. */
            cwd: string;
            /** @description The one that runs use which name none. */
            default: boolean;
            /** @description Of its process, too. */
            id: string;
            /** @description Language of its code. */
            language: components["schemas"]["CodeLanguage"];
            /** @description Time when the context started. */
            started_at: components["schemas"]["Timestamp"];
            /** @description User that the code runs as. */
            user: string;
        };
        /** @description How a run ended. */
        CodeEnd: {
            /** @description The context it ran in. */
            context: string;
            /** @description The context's process ended with the run, and what it kept is gone. */
            context_ended: boolean;
            /**
             * Format: uint64
             * @description Duration of the run in milliseconds.
             */
            duration_ms: number;
            /**
             * Format: int32
             * @description Of a shell's last command.
             */
            exit_code?: number | null;
            /** @description The code was interrupted because its timeout was over. */
            timed_out: boolean;
            /** @description Some output or result was too much, and is not here. */
            truncated: boolean;
        };
        /** @description What the code threw. */
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
            /**
             * Format: uint64
             * @description Duration of the run in milliseconds.
             */
            duration_ms: number;
            /** @description The exception that ended the code, if any. */
            error?: components["schemas"]["CodeError"] | null;
            /**
             * Format: int32
             * @description Of a shell's last command.
             */
            exit_code?: number | null;
            /** @description Results that the code showed, in order. */
            results: components["schemas"]["CodeOutput"][];
            /** @description Standard error of the code. */
            stderr: string;
            /** @description Standard output of the code. */
            stdout: string;
            /** @description The code was interrupted because its timeout was over. */
            timed_out: boolean;
            /** @description Some output or result was too much, and is not here. */
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
            /** @description The text of `.dockerignore`: what of the context is left out. */
            ignore?: string;
            /** @description Name of the template; it gets a new version. */
            name: string;
            /** @description What steps may reach; default: `preset:packages`. */
            network?: components["schemas"]["Network"] | null;
            /** @description Run every step, whatever earlier builds made. */
            no_cache?: boolean;
            /** @description Ask registries for images that are on the host already. */
            pull?: boolean;
            /** @description A server to run before the template's memory is captured: sandboxes begin with it running. */
            start?: components["schemas"]["BuildStart"] | null;
            /** @description Tags that point at the new version from then on; default: `latest`. */
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
            /** @description Name or number, with `:group` if wanted. */
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
             * @description Absent: until revoked.
             */
            expires_in_s?: number | null;
            /** @description Name of the key. */
            name: string;
            /** @description For another organisation; needs the scope `admin`. */
            org?: string | null;
            /** @description Binds the key to this sandbox, by id or name: nothing else exists for it. Not with the scope `admin`. */
            sandbox?: string | null;
            /** @description What the key may do. */
            scopes: components["schemas"]["Scope"][];
        };
        /** @description Body of `POST /v1/orgs`. */
        CreateOrg: {
            /** @description Name, unique on the server. */
            name: string;
            /** @description Quota; what is absent has its default. */
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
            /** @description Lets the sandbox ask who it is, at `http://cove.internal:16910/`. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description Name or id of an image; default: `debian`. */
            image?: string | null;
            /** @description The isolation tier: `container`, `gvisor`, `vm`, or `auto` for the strongest that the host has and the operator allows; default: the operator's choice, `container` unless changed. */
            isolation?: string | null;
            /** @description Labels: key and value pairs to find it by. */
            labels?: {
                [key: string]: string;
            };
            /** @description When to freeze, pause, stop or delete it automatically; default: never. */
            lifecycle?: components["schemas"]["LifecycleRequest"] | null;
            /** @description With `snapshot`: go on with its processes; without, it boots from its disk. */
            memory?: boolean;
            /** @description Unique in the organisation: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
            /** @description Network policy; default: no network. */
            network?: components["schemas"]["NetworkRequest"] | null;
            /** @description Forbid gaining privileges through setuid programs. */
            no_new_privs?: boolean;
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
            /** @description Who commands run as; default: the image's user, else root. */
            user?: string | null;
            /**
             * @description Volumes to mount. They are no part of its disk, nor of its snapshots. Absent with `snapshot`: those that the
             *     snapshot's sandbox had; with `template`: the template's; `[]`: none.
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
        /**
         * @description Body of `POST /v1/templates`: a new version of a template. What is absent is as it was when the snapshot was taken;
         *     network and lifecycle that are absent have the defaults of every sandbox.
         */
        CreateTemplate: {
            /** @description Defaults of sandboxes made from it. */
            defaults?: components["schemas"]["TemplateDefaults"];
            /** @description Sandboxes go on with the snapshot's processes; without, they boot from its disk. */
            memory?: boolean;
            /** @description 1 to 63 lowercase letters, digits or dashes. A name that is there already gets another version. */
            name: string;
            /** @description Id or name of the snapshot that sandboxes begin from. It cannot be deleted while the template is there. */
            snapshot: string;
            /** @description Tags that point at the new version from then on; default: `latest`. */
            tags?: string[];
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
        /** @description Body of `POST /v1/approvals/{approval}`. */
        DecideApproval: {
            /** @description What is decided. */
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
            /** @description With a name alone: all of its versions. Without, a name that has several is refused. */
            all?: boolean;
        };
        /** @description One decision. A connection comes again when it is over, with the bytes it carried and a new `id`. */
        EgressEntry: {
            /** @description Destination address, if it is known. */
            address?: string | null;
            /** @description Time of the decision. */
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Grows; pass the last one seen as `after` to go on.
             */
            id: number;
            /** @description The name asked for or spoken to, where there is one. */
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
            /** @description The entry of the policy that allowed it, or why nothing did. */
            rule: string;
            /**
             * Format: uint64
             * @description Bytes carried, once a connection is over.
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
        /** @description What is kept now. */
        EgressList: {
            /** @description The entries, oldest first. */
            items: components["schemas"]["EgressEntry"][];
            /** @description Entries after `after` were dropped before they could be read. */
            lost: boolean;
            /**
             * Format: uint64
             * @description Pass as `after` to read on.
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
         * @description How output travels in JSON.
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
         * @description Stable names of what can go wrong. Never renamed, only added to.
         *     - `malformed_request`: Not HTTP or JSON as it should be.
         *     - `unauthenticated`: No key, or one that is not known, expired or revoked.
         *     - `forbidden`: The key's scopes do not cover this.
         *     - `quota_exceeded`: The organisation's quota would be passed.
         *     - `permission_denied`: The user inside the sandbox may not do this to the path.
         *     - `path_not_found`: The sandbox is there, the path inside is not.
         *     - `request_timeout`: The client took too long to send its request.
         *     - `conflict`: The state of things does not allow it now.
         *     - `stale`: Somebody changed the same thing at the same time.
         *     - `in_use`: Something still uses it.
         *     - `not_capturable`: Something inside cannot be captured with its memory.
         *     - `unfit_host`: Captured memory asks for what this host lacks.
         *     - `unchanged`: Nothing changed since the last snapshot.
         *     - `idempotency_key_reused`: An idempotency key was used before with another request.
         *     - `process_gone`: The process is over, or never had what was asked for.
         *     - `invalid_request`: Understood, and refused for what it says.
         *     - `too_many_processes`: The sandbox may have no more processes.
         *     - `limit_reached`: A limit inside the sandbox was reached.
         *     - `unsupported`: Known, and not possible here or not yet.
         *     - `guest_unreachable`: The sandbox runs, but what is inside does not answer.
         *     - `port_closed`: The port inside does not take connections.
         *     - `no_capacity`: The host is short of something now.
         *     - `unavailable`: The server is ending or already does too much.
         *     - `timed_out`: The work was not done in its time.
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
        /** @description Something that happened to a sandbox. */
        Event: {
            /** @description Time of the event. */
            at: components["schemas"]["Timestamp"];
            /**
             * Format: uint64
             * @description Grows; pass the last one seen as `Last-Event-ID` to go on after it.
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
            /** @description What was decided. */
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
            /** @description Working directory; default: that of the sandbox. */
            cwd?: string | null;
            /** @description How the one-piece answer carries output: text (what is not UTF-8 is replaced), or base64. */
            encoding?: components["schemas"]["Encoding"] | null;
            /** @description Environment variables. */
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
        /**
         * @description The one-piece answer to exec.
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
             * @description 128 + the signal's number when one ended it, as shells do.
             */
            exit_code: number;
            /** @description What to do about a failure, where the server knows; for example that the network of the sandbox is off. */
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
            /** @description The kernel killed it for memory. */
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
             * @description All that the command wrote, kept or not.
             */
            stdout_bytes: number;
            /** @description The command was ended because its timeout was over. */
            timed_out: boolean;
            /** @description Output was longer than the answer may be; the first part is here. */
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
             * @description 128 + the signal's number when one ended it, as shells do.
             */
            exit_code: number;
            /** @description What to do about a failure, where the server knows; for example that the network of the sandbox is off. */
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
            /** @description The kernel killed it for memory. */
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
             * @description All that the command wrote, kept or not.
             */
            stdout_bytes: number;
            /** @description The command was ended because its timeout was over. */
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
            /** @description What happened. */
            type: components["schemas"]["ChangeKind"];
        };
        /** @description What is at a path. */
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
            /** @description Lease of each child; absent: they have none, whatever the parent has. */
            lease?: components["schemas"]["LeaseRequest"] | null;
            /** @description The children go on with the parent's processes; without, they boot from its disk. */
            memory?: boolean;
            /** @description Of the only child; several are called `name-1`, `name-2` and so on. */
            name?: string | null;
        };
        /** @description One child of a fork, or why there is none. */
        Forked: {
            /** @description A copy. */
            sandbox: components["schemas"]["Sandbox"];
        } | {
            /** @description Why a copy could not be made. */
            error: components["schemas"]["ErrorDetail"];
        };
        /**
         * @description What a sandbox may do to itself.
         *     - `snapshot`: Take a snapshot of its disk.
         *     - `fork`: Make a copy of itself.
         *     - `keep_awake`: Keep its idle policy from putting it away.
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
            /** @description Only if the sandbox has a lease of this holder; otherwise the answer is 409. */
            holder?: string | null;
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
            /** @description Public keys that sign tokens, or did so recently. */
            keys: components["schemas"]["IdentityKey"][];
        };
        /** @description A signed statement of which sandbox its holder is: a JWT of OpenID Connect, signed with RS256. */
        IdentityToken: {
            /** @description Audience of the token. */
            audience: string;
            /** @description Time after which it is not valid any more. */
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
        /** @description What a Dockerfile says of an image. Nothing of it runs by itself: see `start` of a build. */
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
            /** @description `ONBUILD`: instructions for builds that begin from this. */
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
        /** @description An image on its way. Each line of a live answer is one of these; the last is not `running`. */
        ImageJob: {
            /**
             * Format: uint64
             * @description Bytes done in the present stage.
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
            /** @description For a person: what is done now. */
            stage: string;
            /** @description State of the job. */
            state: components["schemas"]["JobState"];
            /**
             * Format: uint64
             * @description Bytes of the present stage, if known.
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
        /** @description What came of an import. */
        Imported: {
            /** @description Why the memory in the file was left out, when it was. */
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
         * @description How far an image on its way is.
         * @enum {string}
         */
        JobState: "running" | "done" | "failed";
        /** @description A host that joins, as `cove node join` sends it. */
        JoinNode: {
            /** @description Where the server reaches the node: host and port. */
            address: string;
            /** @description Id of the host. */
            host: string;
            /** @description Name of the node. */
            name: string;
            /** @description Proof that the host has the token. */
            proof: string;
            /** @description Public key of the node, hexadecimal. */
            public_key: string;
            /** @description Id of the token. */
            token: string;
        };
        /** @description A token by which one host joins. Shown once. */
        JoinToken: {
            /** @description When it expires. */
            expires_at: components["schemas"]["Timestamp"];
            /** @description The token, for `cove node join`. */
            token: string;
        };
        /** @description What a host that joined gets. */
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
            /** @description The key made at first start. */
            root: boolean;
            /** @description Id of the sandbox that the key is bound to; absent: it is good for the whole organisation. */
            sandbox?: string | null;
            /** @description What the key may do. */
            scopes: components["schemas"]["Scope"][];
        };
        /** @description Somebody who must say from time to time that the sandbox is still needed. */
        Lease: {
            /**
             * Format: uint64
             * @description Seconds after that at which it is deleted.
             */
            delete_after_s: number;
            /** @description Name that the holder chose for itself. */
            holder: string;
            /** @description Whether the sandbox was put away because nobody renewed the lease. */
            lapsed: boolean;
            /**
             * Format: uint64
             * @description Seconds without a renewal after which the sandbox is paused, or stopped where it cannot be paused.
             */
            renew_within_s: number;
        };
        /** @description A lease to begin or to take over. */
        LeaseRequest: {
            /**
             * Format: uint64
             * @description It is deleted so many seconds after that. Default: as before when a lease is taken over, else 86400.
             */
            delete_after_s?: number | null;
            /** @description Name that the holder chose for itself; a renewal must give the same. */
            holder: string;
            /**
             * Format: uint64
             * @description The sandbox is paused when nobody renewed the lease for so many seconds; stopped where it cannot be paused.
             *     Default: as before when a lease is taken over, else 300.
             */
            renew_within_s?: number | null;
        };
        /**
         * @description How much a finding of `cove doctor` matters.
         *     - `warning`: Works, with less.
         *     - `error`: Sandboxes cannot run.
         * @enum {string}
         */
        Level: "ok" | "warning" | "error";
        /** @description When a sandbox that nobody uses is put away; absent: never. The times must grow in this order. */
        Lifecycle: {
            /** @description Whether a request that needs it wakes it when it is frozen or paused; default: true. */
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
        /**
         * @description When a new sandbox that nobody uses is put away. Fields that are absent are the template's, else unset; `null` unsets
         *     one that the template has.
         */
        LifecycleRequest: {
            /** @description Whether a request that needs it wakes it when it is frozen or paused; default: true. */
            auto_resume?: boolean | null;
            /** @description When to take snapshots automatically; taken as a whole. */
            auto_snapshot?: components["schemas"]["AutoSnapshot"] | null;
            /**
             * Format: uint64
             * @description Delete an idle sandbox after this time, in seconds.
             */
            delete_after_s?: number | null;
            /**
             * Format: uint64
             * @description Its processes hold still, memory kept; it wakes within milliseconds.
             */
            freeze_after_s?: number | null;
            /**
             * @description Pause the sandbox when its holder does not renew this, and delete it later. Absent: it has no lease. Never a
             *     template's.
             */
            lease?: components["schemas"]["LeaseRequest"] | null;
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
            /**
             * Format: uint32
             * @description Number of entries at most.
             */
            limit?: number | null;
            /** @description Absolute path of the directory. */
            path: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `GET /v1/sandboxes`. */
        ListSandboxes: {
            /** @description `next_cursor` of the page before. */
            cursor?: string | null;
            /** @description `key=value` pairs with commas between; all must match. */
            labels?: string | null;
            /**
             * Format: uint32
             * @description Items at most; default: 100.
             */
            limit?: number | null;
            /** @description Only the sandbox with this name. */
            name?: string | null;
            /** @description Only sandboxes in this state. */
            state?: components["schemas"]["SandboxState"] | null;
        };
        /** @description Query of `GET /v1/templates`. */
        ListTemplates: {
            /** @description `next_cursor` of the page before. */
            cursor?: string | null;
            /**
             * Format: uint32
             * @description Items at most; default: 100.
             */
            limit?: number | null;
            /** @description Only versions of this name. */
            name?: string | null;
        };
        /** @description A directory's entries. */
        Listing: {
            /** @description The entries. */
            items: components["schemas"]["FileInfo"][];
            /** @description There are more than the limit allows. */
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
        /** @description What a sandbox uses, from the host. */
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
            /** @description Absolute. Made where it is missing. */
            path: string;
            /** @description Mount it read-only. */
            read_only?: boolean;
            /** @description Id or name; the id in answers. */
            volume: string;
        };
        /** @description Body of `POST …/files/move`. */
        MoveFile: {
            /** @description Absolute path of what to move. */
            from: string;
            /** @description Replace what is at `to`. */
            replace?: boolean;
            /** @description Absolute path to move it to. */
            to: string;
            /** @description User whose permissions apply; default: the sandbox's user. */
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
            /**
             * @description What the sandbox can reach: nothing, a list, or everything.
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
             * @description What it may receive, likewise.
             */
            bandwidth_down_mbit?: number | null;
            /**
             * Format: uint32
             * @description What the sandbox may send, in megabits per second; `null`: no limit.
             */
            bandwidth_up_mbit?: number | null;
            /** @description Default: `none`. One that is given takes the template's `allow` away. */
            mode?: components["schemas"]["Reach"] | null;
        };
        /** @description A new key. The token is shown this once and kept only as a hash. */
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
            /** @description The key made at first start. */
            root: boolean;
            /** @description Id of the sandbox that the key is bound to; absent: it is good for the whole organisation. */
            sandbox?: string | null;
            /** @description What the key may do. */
            scopes: components["schemas"]["Scope"][];
            /** @description The token to authenticate with. */
            token: string;
        };
        /** @description No query at all: whatever is given is refused. */
        NoQuery: Record<string, never>;
        /** @description A further host. */
        Node: {
            /** @description Where the server reaches it. */
            address: string;
            /** @description What it may promise and has promised, as it last said. */
            capacity?: components["schemas"]["NodeCapacity"] | null;
            /** @description When its certificate ends. The server renews it before. */
            certificate_expires_at: components["schemas"]["Timestamp"];
            /**
             * Format: int64
             * @description Clock of the node, minus clock of the server, in milliseconds.
             */
            clock_skew_ms?: number | null;
            /** @description Takes no new sandboxes. */
            cordoned: boolean;
            /** @description Id of the host. */
            id: string;
            /** @description Time of the join. */
            joined_at: components["schemas"]["Timestamp"];
            /** @description When it last answered. */
            last_seen_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name of the node. */
            name: string;
            /** @description Why it does not answer. */
            reason?: string | null;
            /** @description Whether it answers. */
            state: components["schemas"]["NodeState"];
            /** @description Version of Cove on the node. */
            version?: string | null;
        };
        /** @description What a node may promise to sandboxes, and what it has promised. */
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
             * @description Sandboxes that run.
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
         *     - `none`: It is on its host alone.
         *     - `uploading`: It is asked for and on its way.
         *     - `stored`: All of it is there: the loss of its host does not lose it.
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
            /** @description The most it may use. */
            quota: components["schemas"]["Amount"];
            /** @description What it uses now. */
            used: components["schemas"]["Amount"];
        };
        /** @description Some output. `text` when it is UTF-8, else `data` in base64. */
        OutputChunk: {
            /** @description The output in base64, if it is not UTF-8. */
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
             * @description Go on until the command ends. Without it, what is there now.
             * @default false
             */
            follow: boolean;
            /**
             * Format: uint64
             * @description Offset of standard error to begin at.
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
            /** @description The items of this page. */
            items: components["schemas"]["Sandbox"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page10: {
            /** @description The items of this page. */
            items: components["schemas"]["Key"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page11: {
            /** @description The items of this page. */
            items: components["schemas"]["SshKey"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page12: {
            /** @description The items of this page. */
            items: components["schemas"]["Secret"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page13: {
            /** @description The items of this page. */
            items: components["schemas"]["SecretUser"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page14: {
            /** @description The items of this page. */
            items: components["schemas"]["Approval"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page15: {
            /** @description The items of this page. */
            items: components["schemas"]["Org"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page16: {
            /** @description The items of this page. */
            items: components["schemas"]["AuditRecord"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page17: {
            /** @description The items of this page. */
            items: components["schemas"]["AuditChain"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page18: {
            /** @description The items of this page. */
            items: components["schemas"]["Runner"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page19: {
            /** @description The items of this page. */
            items: components["schemas"]["Node"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page2: {
            /** @description The items of this page. */
            items: components["schemas"]["Snapshot"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page20: {
            /** @description The items of this page. */
            items: components["schemas"]["Quarantined"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page3: {
            /** @description The items of this page. */
            items: components["schemas"]["Event"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page4: {
            /** @description The items of this page. */
            items: components["schemas"]["Process"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page5: {
            /** @description The items of this page. */
            items: components["schemas"]["Port"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page6: {
            /** @description The items of this page. */
            items: components["schemas"]["CodeContext"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page7: {
            /** @description The items of this page. */
            items: components["schemas"]["Image"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page8: {
            /** @description The items of this page. */
            items: components["schemas"]["Volume"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
        };
        /** @description One page of a list. `next_cursor` is absent on the last one. */
        Page9: {
            /** @description The items of this page. */
            items: components["schemas"]["Template"][];
            /** @description Cursor of the next page; absent on the last one. */
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
        /** @description Changes of a node. */
        PatchNode: {
            /** @description Take no new sandboxes. */
            cordoned?: boolean | null;
        };
        /** @description Body of `PATCH /v1/orgs/{org}`. */
        PatchOrg: {
            /** @description New quota; what is absent stays. */
            quota: components["schemas"]["QuotaRequest"];
        };
        /** @description Body of `PATCH /v1/sandboxes/{id}`: what is absent stays. Labels and lifecycle are replaced whole. */
        PatchSandbox: {
            /**
             * Format: uint64
             * @description Refuse with `stale` when the sandbox has another generation by now.
             */
            expected_generation?: number | null;
            /** @description New labels; they replace all present ones. */
            labels?: {
                [key: string]: string;
            } | null;
            /** @description New lifecycle rules; they replace all present ones. */
            lifecycle?: components["schemas"]["Lifecycle"] | null;
            /** @description `null` takes the name away. */
            name?: string | null;
            /** @description Replaces the whole policy; connections that it forbids are cut. */
            network?: components["schemas"]["Network"] | null;
            /** @description New limits. */
            resources?: components["schemas"]["ResourcesChange"] | null;
        };
        /** @description A TCP port somebody inside listens on. */
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
            /** @description Everybody may visit the preview. */
            public?: boolean;
            /** @description Where its preview is, where the server has previews. Private unless shared. */
            url?: string | null;
        };
        /** @description Where a shared port is visited. */
        PortShare: {
            /** @description Time when the share ends; absent: when it is revoked. */
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** @description For programs that do not resolve such names. */
            path_url: string;
            /** @description Everybody can open the preview, without a link. */
            public: boolean;
            /** @description Of the link by itself: programs may send it as `X-Cove-Token`. */
            token?: string | null;
            /** @description For browsers: a host of its own. Signed unless the port is public. */
            url: string;
        };
        /** @description A command's record. */
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
             * @description Inside the sandbox.
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
             * @description Oldest offsets that can still be read.
             */
            stdout_oldest: number;
            /** @description What the caller gave it. */
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
         *     - `command`: Somebody waits for its end: an exec. Its sandbox is never idle.
         *     - `terminal`: It has a terminal. Its sandbox is idle when nobody is attached.
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
            /** @description What it is. */
            kind: components["schemas"]["QuarantinedKind"];
            /** @description Its name, if known. */
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
        /**
         * @description What is quarantined.
         * @enum {string}
         */
        QuarantinedKind: "sandbox" | "snapshot" | "volume";
        /** @description The most an organisation may hold at once; what is absent has its default, or stays. */
        QuotaRequest: {
            /**
             * Format: double
             * @description CPUs of all sandboxes at most.
             */
            cpu?: number | null;
            /**
             * Format: uint64
             * @description Disk of all sandboxes at most, in MiB.
             */
            disk_mb?: number | null;
            /**
             * Format: uint64
             * @description Memory of all sandboxes at most, in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: uint64
             * @description Sandboxes at most.
             */
            sandboxes?: number | null;
        };
        /**
         * @description What a sandbox can reach.
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
            /** @description Absolute. */
            path: string;
            /** @description Whose rights to use; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description Query of `DELETE …/files`. */
        RemoveFile: {
            /** @description Absolute path. */
            path: string;
            /** @description Directories with what is in them. */
            recursive?: boolean;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
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
            /** @description Ids of sandboxes that are gone or whose lease this holder does not have. */
            lost: string[];
        };
        /** @description A live change of limits: what is absent stays. */
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
             * @description Processes and threads at most.
             */
            pids?: number | null;
        };
        /** @description Limits asked for; what is absent has its default. */
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
             * @description Where memory may grow to; absent: it does not grow.
             */
            memory_max_mb?: number | null;
            /**
             * Format: uint64
             * @description Memory in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: uint64
             * @description Open files per process at most.
             */
            open_files?: number | null;
            /**
             * Format: uint64
             * @description Processes and threads at most.
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
             * @description Open files per process at most.
             */
            open_files: number;
            /**
             * Format: uint64
             * @description Processes and threads at most.
             */
            pids: number;
        };
        /** @description Body of `POST …/rollback`. */
        Rollback: {
            /** @description Bring its processes back too; refused when it has no memory. */
            memory?: boolean;
            /** @description Id or name. */
            snapshot: string;
        };
        /** @description Answer of a rollback. */
        RolledBack: {
            /** @description What it was before; rolling back to this undoes the rollback. */
            kept: components["schemas"]["Snapshot"];
            /** @description The sandbox after the rollback. */
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
            /** @description The code to run. */
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
             * @description How many sandboxes are prepared ahead of need; 0: every create begins from nothing.
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
            /** @description The snapshot it began from, when it did not begin from an image. */
            from_snapshot?: string | null;
            /**
             * Format: uint64
             * @description Grows with every change.
             */
            generation: number;
            /** @description The snapshot its present state grew from. */
            head?: string | null;
            /** @description Id. */
            id: string;
            /** @description What it may know and do about itself; absent without one. */
            identity?: components["schemas"]["Identity"] | null;
            /** @description As asked for. */
            image: string;
            /** @description The image itself, once the host resolved the name. */
            image_id?: string | null;
            /** @description The tier that holds it; never `auto`. */
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
            /** @description Why it is in this state, when that is not plain. */
            reason?: string | null;
            /** @description Limits. */
            resources: components["schemas"]["ResourcesView"];
            /** @description Secrets that it may use by placeholders. */
            secrets?: components["schemas"]["SecretGrant"][];
            /** @description Time of the last start. */
            started_at?: components["schemas"]["Timestamp"] | null;
            /** @description State. */
            state: components["schemas"]["SandboxState"];
            /** @description Absent unless it is stopped or has failed. */
            stopped_at?: components["schemas"]["Timestamp"] | null;
            /** @description Time of the last change. */
            updated_at: components["schemas"]["Timestamp"];
            /** @description User that commands run as, if one was given. */
            user?: string | null;
            /** @description Mounted volumes; no part of its disk, nor of its snapshots. */
            volumes?: components["schemas"]["Mount"][];
            /** @description What its creator should know; only in the answer to a create. */
            warnings?: string[];
            /** @description Working directory of commands, if one was given. */
            workdir?: string | null;
        };
        /**
         * @description State of a sandbox.
         *     - `creating`: Being made or started; not yet answering.
         *     - `frozen`: Its processes are stopped where they were; memory is kept, a thaw takes about a millisecond.
         *     - `pausing`: Its memory is going to disk; it runs on if that fails.
         *     - `paused`: No processes; memory and disk are kept on disk.
         *     - `resuming`: Its memory is coming back from disk.
         *     - `restoring`: Being rolled back to a snapshot.
         *     - `stopping`: Asked to end; its processes are getting their chance to.
         *     - `stopped`: No processes; the disk is kept.
         *     - `failed`: Could not be made or started; the reason is in its events.
         * @enum {string}
         */
        SandboxState: "running" | "deleting" | "gone" | "creating" | "frozen" | "pausing" | "paused" | "resuming" | "restoring" | "stopping" | "stopped" | "failed";
        /** @description What one sandbox used. */
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
             * @description Time that was charged by the difference of dates, because the host was restarted meanwhile. The rest
             *     is measured.
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
         *     - `read`: See sandboxes, their state, events and figures, images and usage. Nothing inside a sandbox.
         *     - `use`: Work in sandboxes that exist: commands, files, ports; start one that is stopped.
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
            /** @description Id. */
            id: string;
            /** @description Time of the last use. */
            last_used_at?: components["schemas"]["Timestamp"] | null;
            /** @description Name, unique in the organisation. */
            name: string;
            /** @description When this version was set. */
            updated_at: components["schemas"]["Timestamp"];
            /** @description Place in the request: `bearer`, `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE` or `exposed`. */
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
        /** @description A secret in a sandbox: where inside its placeholder is. */
        SecretGrant: {
            /** @description The variable that holds the placeholder, or the value of an exposed secret. */
            env?: string | null;
            /** @description The value itself is there, not a placeholder. The use of the secret must be `exposed`. */
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
        /** @description Body of `POST /v1/secrets`: the first version of a secret, or its next one. */
        SetSecret: {
            /**
             * @description Each use needs an approval.
             * @default false
             */
            ask: boolean;
            /**
             * @description Where it may be sent: `api.example.com`, or `git.example.com:8443`. None for the use `exposed`.
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
        /** @description Body of `POST …/signal`. */
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
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description In timelines only: it is gone. */
            deleted_at?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint64
             * @description What deleting it would free.
             */
            exclusive_bytes: number;
            /** @description Id. */
            id: string;
            /** @description The image below it. */
            image_id?: string | null;
            /** @description Why it was taken. */
            kind: components["schemas"]["SnapshotKind"];
            /** @description It includes processes and memory. */
            memory: boolean;
            /**
             * Format: uint64
             * @description Of its memory, part of `exclusive_bytes`.
             */
            memory_bytes: number;
            /** @description Name, unique in the organisation. */
            name?: string | null;
            /** @description Whether object storage has it. */
            object_storage?: components["schemas"]["ObjectCopy"] | null;
            /** @description The host has it. If not, the next use fetches it from object storage. */
            on_host?: boolean | null;
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
        /**
         * @description Why a snapshot was taken. All but the first and the last come and go by themselves.
         *     - `manual`: Somebody asked for it.
         *     - `auto`: `auto_snapshot` asked for it.
         *     - `fork`: What the children of a fork began from.
         *     - `rollback`: What a sandbox was before a rollback.
         *     - `import`: It came in a file from somewhere else.
         *     - `build`: A step of a template's build. It goes when neither the cache of builds nor a template has it.
         * @enum {string}
         */
        SnapshotKind: "manual" | "auto" | "fork" | "rollback" | "import" | "build";
        /** @description A way in for one sandbox. The token is the password. */
        SshAccess: {
            /** @description For a terminal. */
            command: string;
            /** @description Time after which it is not valid any more. */
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
            /** @description The user name to log in with; `USER+` before it chooses the user inside. */
            user: string;
        };
        /** @description Answer of `GET /v1/ssh`: where the gateway is and how to know it. */
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
        /** @description A public key whose holder may use the organisation's sandboxes over SSH. */
        SshKey: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Time after which it is not valid any more. */
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
            /** @description Give it a terminal of this size. */
            pty?: components["schemas"]["TerminalSize"] | null;
            /**
             * Format: uint64
             * @description Bytes of output kept of each stream for those who come later.
             */
            ring_bytes?: number | null;
            /** @description Keep its input open for `POST …/stdin` and attach. A terminal always has one. */
            stdin_open?: boolean;
            /** @description Shown in listings; does not change what runs. */
            tag?: string | null;
            /**
             * Format: uint64
             * @description Time after which the command's process group is ended, in milliseconds.
             */
            timeout_ms?: number | null;
            /** @description User name or number, with `:group` if wanted. */
            user?: string | null;
        };
        /** @description Query of `GET …/files/stat`. */
        StatFile: {
            /** @description Describe what a symlink points to instead of the link. */
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
            /** @description Answer only once object storage has it. Needs a server with object storage. */
            durable?: boolean;
            /** @description Processes and memory too, not only the disk. */
            memory?: boolean;
            /** @description Unique among the organisation's snapshots: 1 to 63 lowercase letters, digits or dashes. */
            name?: string | null;
        };
        /** @description One version of a template. Nothing of it changes but its tags. */
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
            /** @description What the Dockerfile says of the image beyond the settings above; absent if it was not built from one. */
            image?: components["schemas"]["ImageConfig"] | null;
            /** @description Isolation tier. */
            isolation: string;
            /** @description Lifecycle rules. */
            lifecycle: components["schemas"]["Lifecycle"];
            /** @description Its snapshot is gone although nobody deleted it: no sandbox can begin from it. */
            lost?: boolean;
            /** @description Sandboxes go on with the snapshot's processes. */
            memory: boolean;
            /** @description Name, unique in the organisation. */
            name: string;
            /** @description Network policy. */
            network: components["schemas"]["Network"];
            /** @description Programs cannot gain privileges through setuid. */
            no_new_privs: boolean;
            /** @description Limits. */
            resources: components["schemas"]["ResourcesView"];
            /** @description The snapshot that sandboxes begin from. */
            snapshot: string;
            /** @description Tags of this version. */
            tags: string[];
            /** @description User that commands run as. */
            user?: string | null;
            /**
             * Format: uint64
             * @description Counts from 1 for each name.
             */
            version: number;
            /** @description What all sandboxes from it mount. */
            volumes?: components["schemas"]["Mount"][];
            /** @description Working directory of commands. */
            workdir?: string | null;
        };
        /** @description What a sandbox from the template is like where its maker does not say. */
        TemplateDefaults: {
            /** @description Put over the variables that the snapshot's sandbox had. */
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
            /** @description Volumes to mount; sandboxes from the template share them. Those of the snapshot's sandbox are not taken over. */
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
            /** @description What the tier can do, like `snapshot` or `memory`. */
            capabilities: string[];
            /** @description Name of the tier. */
            name: string;
            /** @description Whether sandboxes of this tier can run; virtual machines: without emulation. */
            usable: boolean;
        };
        /** @description The tree a sandbox is part of. */
        Timeline: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description Sandboxes that began from one of its snapshots, oldest first. */
            forks: components["schemas"]["TimelineFork"][];
            /** @description The snapshot it began from, when it did not begin from an image. */
            from_snapshot?: string | null;
            /** @description The snapshot its present state grew from. */
            head?: string | null;
            /** @description Name of the sandbox. */
            name?: string | null;
            /** @description Id of the sandbox. */
            sandbox: string;
            /**
             * @description Its own and those it grew from, oldest first; those that are gone too, as long as they are
             *     remembered.
             */
            snapshots: components["schemas"]["Snapshot"][];
            /** @description State of the sandbox. */
            state: components["schemas"]["SandboxState"];
            /** @description There are more snapshots than these. */
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
            /** @description What each sandbox used. */
            items: components["schemas"]["SandboxUsage"][];
            /** @description Cursor of the next page; absent on the last one. */
            next_cursor?: string | null;
            /** @description What the organisation used. */
            total: components["schemas"]["UsageFigures"];
        };
        /** @description What was used. */
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
             * @description Time that was charged by the difference of dates, because the host was restarted meanwhile. The rest
             *     is measured.
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
            /** @description `next_cursor` of the page before. */
            cursor?: string | null;
            /** @description Begin of the period, to the hour; absent: the beginning. */
            from?: components["schemas"]["Timestamp"] | null;
            /**
             * Format: uint32
             * @description Items at most; default: 100.
             */
            limit?: number | null;
            /** @description Only this sandbox, over its whole life. */
            sandbox?: string | null;
            /** @description End of the period, to the hour, itself not in it; absent: now. */
            to?: components["schemas"]["Timestamp"] | null;
        };
        /** @description A volume. */
        Volume: {
            /** @description Time of creation. */
            created_at: components["schemas"]["Timestamp"];
            /** @description The volume it began as a copy of; that may be gone. */
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
             * @description What it holds, as of the host's last look, which is up to a minute ago.
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
            /** @description Keep the owners the archive names. */
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
            /** @description Make missing parent directories. */
            parents?: boolean;
            /** @description Absolute path. */
            path: string;
            /** @description Flush to the disk before answering. */
            sync?: boolean;
            /** @description User whose permissions apply; default: the sandbox's user. */
            user?: string | null;
        };
        /** @description What a write or an unpacked archive brought in. */
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
