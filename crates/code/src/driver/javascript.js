// Runs code cell after cell in the main thread, as Node's own console would: `let` may be declared again
// and `await` stands anywhere. A worker takes the requests, so that code which never returns can be
// interrupted through the inspector. Requests and frames are those of the Python driver; "interrupt\n" is
// a request too. `require`, `process`, `load` (a dynamic import) and `mark` come from what starts it.
'use strict';
const { Worker } = require('node:worker_threads');
const { Session } = require('node:inspector');
const { createRequire } = require('node:module');
const fs = require('node:fs');
const path = require('node:path');
const url = require('node:url');
const util = require('node:util');
const { promiseHooks } = require('node:v8');

const PIECE = 4000;
function put(fd, data) {
  while (data.length) {
    try {
      data = data.subarray(fs.writeSync(fd, data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}
let messages = 0;
function frame(fd, kind, run, value) {
  let rest = Buffer.from(value === undefined ? '' : JSON.stringify(value));
  messages += 1;
  for (;;) {
    const piece = rest.subarray(0, PIECE);
    rest = rest.subarray(PIECE);
    const head = `${mark}${rest.length ? 'part' : kind} ${run} ${messages} ${piece.length}\n`;
    put(fd, Buffer.concat([Buffer.from(head), piece]));
    if (!rest.length) return;
  }
}

const TEXT_MAX = 1 << 20;
let current = { run: '-' };

function bundle(value) {
  const data = {};
  if (value !== null && typeof value === 'object') {
    if (typeof value.toHTML === 'function') {
      try { data['text/html'] = String(value.toHTML()); } catch {}
    }
    const plain = Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype;
    if (plain) {
      try {
        const text = JSON.stringify(value);
        if (text !== undefined && text.length <= TEXT_MAX) data['application/json'] = JSON.parse(text);
      } catch {}
    }
  }
  try { data['text/plain'] = util.inspect(value, { depth: 6, maxArrayLength: 1000 }).slice(0, TEXT_MAX); }
  catch (error) { data['text/plain'] = '<cannot be shown: ' + error + '>'; }
  return data;
}

// Shows a value as a result, or the forms of it that an object of media types tells.
function display(value) {
  const keys = value !== null && typeof value === 'object' ? Object.keys(value) : [];
  const forms = keys.length > 0 && keys.every((key) => /^[\w.+-]+\/[\w.+-]+$/.test(key));
  frame(1, 'result', current.run, { data: forms ? value : bundle(value), main: false });
}

const hidden = (name, value) =>
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
hidden('require', createRequire(process.cwd() + '/'));
hidden('display', display);
hidden('__cove_value__', (value) => { current.value = value; });
hidden('__cove_import__', (name) => {
  if (/^\.{0,2}\//.test(name)) {
    name = url.pathToFileURL(path.resolve(name)).href;
  } else if (!name.includes(':')) {
    try {
      const place = require.resolve(name, { paths: [process.cwd()] });
      if (path.isAbsolute(place)) name = url.pathToFileURL(place).href;
    } catch {}
  }
  return load(name);
});
process.argv.splice(1);
process.on('SIGINT', () => {});
process.on('uncaughtException', (error) => { console.error(error); });
process.on('unhandledRejection', (error) => { console.error('Uncaught (in promise)', error); });

// The inspector tells when a promise it waits for is garbage, and does so in the middle of the collection,
// where no code may run and the process would end. So none is garbage as long as it is pending.
const pending = new Set();
promiseHooks.createHook({
  init: (promise) => { pending.add(promise); },
  settled: (promise) => { pending.delete(promise); },
});

const session = new Session();
session.connect();

const queue = [];
function next() {
  const [run, source, refusal] = queue[0];
  current = { run };
  frame(1, 'begin', run);
  frame(2, 'begin', run);
  if (refusal) return over({ run }, { name: 'Error', value: refusal, traceback: refusal });
  const mine = current;
  const request = { expression: source, replMode: true, awaitPromise: true, objectGroup: run };
  session.post('Runtime.evaluate', request, (error, answer) => {
    if (mine.over) return;
    // The inspector itself fails only when the code was cut off.
    if (error) return over(mine, INTERRUPTED);
    if (answer.exceptionDetails) return over(mine, refused(answer.exceptionDetails));
    const value = fetched(answer.result);
    if (value !== undefined) frame(1, 'result', run, { data: bundle(value), main: true });
    over(mine);
  });
}

function fetched({ type, objectId, unserializableValue, value }) {
  if (objectId) {
    const functionDeclaration = 'function () { __cove_value__(this); }';
    session.post('Runtime.callFunctionOn', { functionDeclaration, objectId });
    return current.value;
  }
  if (unserializableValue === undefined) return value;
  return type === 'bigint' ? BigInt(unserializableValue.slice(0, -1)) : Number(unserializableValue);
}

const INTERRUPTED = { name: 'Interrupted', value: 'the code was interrupted', traceback: '' };
const OURS = /node:inspector|node:internal|node:events|\(?cove:\d|at Worker\.emit/;

function described(name, text) {
  const lines = text.split('\n');
  const value = lines[0].replace(/^(Uncaught )?[\w$.]*(Error|Exception): /, '');
  return { name, value, traceback: lines.filter((line) => !OURS.test(line)).join('\n') };
}

function refused({ exception: thrown, text }) {
  if (!thrown) return { name: 'Error', value: text, traceback: text };
  if (thrown.subtype !== 'error') {
    const value = util.inspect(fetched(thrown));
    return { name: 'Uncaught', value, traceback: `Uncaught ${value}` };
  }
  return described(thrown.className ?? 'Error', thrown.description ?? text);
}

function over(mine, error) {
  if (mine.over || mine.run !== current.run) return;
  mine.over = current.over = true;
  session.post('Runtime.releaseObjectGroup', { objectGroup: mine.run });
  if (error) frame(1, 'error', mine.run, error);
  frame(2, 'end', mine.run);
  frame(1, 'end', mine.run, {});
  queue.shift();
  if (queue.length) setImmediate(next);
}

function worker() {
  const net = require('node:net');
  const { Session } = require('node:inspector');
  const { stripTypeScriptTypes } = require('node:module');
  const { parentPort } = require('node:worker_threads');
  // How long code gets to give way by itself before it is cut off.
  const GRACE_MS = 100;
  let waiting = null;
  parentPort.on('message', () => { clearTimeout(waiting); });

  // Imports are for modules; here they become what a console can do.
  const IMPORT = /^[ \t]*import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|(\{[^}]*\}))?\s*(?:from\s*)?(['"])([^'"\n]+)\4[ \t]*;?/gm;
  const DYNAMIC = /(?<![.\w$])import\s*\(/g;
  function withoutImports(code) {
    return code.replace(DYNAMIC, '__cove_import__(').replace(IMPORT, (whole, one, all, list, quote, name) => {
      const from = `(await __cove_import__(${JSON.stringify(name)}))`;
      const parts = [];
      if (one) parts.push(`var ${one} = ${from}.default;`);
      if (all) parts.push(`var ${all} = ${from};`);
      if (list) parts.push(`var ${list.replace(/\bas\b/g, ':')} = ${from};`);
      return parts.length ? parts.join(' ') : `${from};`;
    });
  }
  function withoutTypes(code) {
    if (!stripTypeScriptTypes) throw new Error('this Node cannot run TypeScript; version 22.13 or later can');
    const warn = process.emitWarning;
    process.emitWarning = () => {};
    try {
      return stripTypeScriptTypes(code, { mode: 'transform' });
    } finally {
      process.emitWarning = warn;
    }
  }
  function request(words, code) {
    try {
      if (words[2] === 'typescript') code = withoutTypes(code);
      parentPort.postMessage({ run: words[1], source: withoutImports(code) });
    } catch (error) {
      parentPort.postMessage({ run: words[1], refusal: String(error?.message ?? error) });
    }
  }
  function interrupt() {
    parentPort.postMessage({ interrupt: true });
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const session = new Session();
      session.connectToMainThread();
      session.post('Runtime.terminateExecution', () => session.disconnect());
    }, GRACE_MS);
  }

  let pending = Buffer.alloc(0);
  const requests = new net.Socket({ fd: 9, readable: true, writable: false });
  requests.on('data', (data) => {
    pending = Buffer.concat([pending, data]);
    for (;;) {
      const end = pending.indexOf(10);
      if (end < 0) return;
      const words = pending.subarray(0, end).toString().split(' ');
      const length = words[0] === 'run' ? Number(words[3]) : 0;
      if (pending.length < end + 1 + length) return;
      const code = pending.subarray(end + 1, end + 1 + length).toString();
      pending = pending.subarray(end + 1 + length);
      if (words[0] === 'run') request(words, code);
      else interrupt();
    }
  });
  requests.on('end', () => process.exit(0));
}

const helper = new Worker(`(${worker})()`, { eval: true });
helper.on('message', (message) => {
  if (message.interrupt) {
    helper.postMessage('heard');
    if (!current.over && queue.length) {
      over(current, INTERRUPTED);
    }
  } else if (queue.push([message.run, message.source, message.refusal]) === 1) {
    next();
  }
});
helper.on('exit', () => process.exit(0));
