/** The chat page. It speaks to the server that it came from, and to nobody else. */

const $ = (id) => document.getElementById(id);
const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

/** The conversation, oldest first. */
let messages = [];
/** Whether each model has a chat template. */
const hasChat = new Map();
/** Ends the answer that is being written. */
let running;

const headers = () => ({
  'content-type': 'application/json',
  ...($('key').value && { authorization: `Bearer ${$('key').value}` }),
});

async function ask(path, init = {}) {
  const response = await fetch(path, { headers: headers(), ...init });
  if (response.ok) return response;
  const { error } = await response.json();
  throw new Error(error.message);
}

function show(problem) {
  $('problem').hidden = !problem;
  $('problem').textContent = problem ?? '';
}

function addMessage(role, content) {
  const item = document.createElement('li');
  item.className = role;
  item.textContent = content;
  $('log').append(item);
  item.scrollIntoView({ block: 'end' });
  return item;
}

/** Settings that were filled in. */
const sampling = () =>
  Object.fromEntries(
    NUMBERS.flatMap((name) => ($(name).value === '' ? [] : [[name, Number($(name).value)]])),
  );

/** Path and body of a request: a model without a chat template goes on with the text so far. */
function requestOf(model) {
  const common = { model, stream: true, ...sampling() };
  const system = $('system').value;
  if (!hasChat.get(model)) {
    const prompt = system + messages.map(({ content }) => content).join('');
    return ['v1/completions', { max_tokens: 256, ...common, prompt }];
  }
  const first = system ? [{ role: 'system', content: system }] : [];
  return ['v1/chat/completions', { ...common, messages: [...first, ...messages] }];
}

/** Texts of a stream of events. */
async function* textsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error('the server closed the connection');
    const lines = (buffer + value).split('\n\n');
    buffer = lines.pop();
    for (const line of lines.filter((each) => each.startsWith('data: '))) {
      const data = line.slice('data: '.length);
      if (data === '[DONE]') return;
      const { error, choices } = JSON.parse(data);
      if (error) throw new Error(error.message);
      yield choices[0]?.delta?.content ?? choices[0]?.text ?? '';
    }
  }
}

async function send(text) {
  messages.push({ role: 'user', content: text });
  addMessage('user', text);
  show();
  running = new AbortController();
  setRunning(true);
  const item = addMessage('assistant', '');
  let content = '';
  try {
    const [path, body] = requestOf($('model').value);
    const response = await ask(path, {
      method: 'POST',
      body: JSON.stringify(body),
      signal: running.signal,
    });
    for await (const piece of textsOf(response)) {
      content += piece;
      item.append(piece);
      $('log').parentElement.scrollTop = $('log').parentElement.scrollHeight;
    }
  } catch (error) {
    if (!running.signal.aborted) show(error.message);
  }
  if (content) messages.push({ role: 'assistant', content });
  else takeBack(item);
  running = undefined;
  setRunning(false);
}

/** A message that got no answer goes back to where it was written. */
function takeBack(item) {
  item.previousElementSibling.remove();
  item.remove();
  const { content } = messages.pop();
  if (!$('text').value) $('text').value = content;
}

function setRunning(on) {
  $('send').disabled = on;
  $('stop').disabled = !on;
  if (!on) $('text').focus();
}

function startAnew() {
  running?.abort();
  messages = [];
  $('log').replaceChildren();
  show();
  $('text').focus();
}

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('text').value;
  if (running || !text.trim()) return;
  $('text').value = '';
  send(text);
});
$('text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $('ask').requestSubmit();
});
$('stop').addEventListener('click', () => running?.abort());
$('new').addEventListener('click', startAnew);
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
  if (event.altKey && event.key.toLowerCase() === 'n') startAnew();
});

/** The strip: differences between two readings of /stats. */
let before;

async function readStats() {
  const now = await (await ask('stats')).json();
  const at = performance.now();
  const model = now.models.find(({ id }) => id === $('model').value);
  const earlier = before?.models.find(({ id }) => id === $('model').value);
  const seconds = (at - (before?.at ?? at)) / 1000;
  before = { ...now, at };
  if (!model || !earlier || seconds === 0) return;
  const since = (field) => model[field] - earlier[field];
  const rate = since('generated_tokens') / seconds;
  const bandwidth = since('bytes_read') / seconds / now.memory_bandwidth;
  const prompt = since('prompt_tokens');
  $('rate').textContent = rate.toFixed(1);
  $('bandwidth').textContent = now.memory_bandwidth > 0 ? percent(bandwidth) : '–';
  $('batch').textContent = model.waiting ? `${model.running} + ${model.waiting}` : String(model.running);
  if (prompt > 0) $('reuse').textContent = percent(since('reused_tokens') / prompt);
  const [hit, fetched] = [since('expert_hits'), since('expert_misses')];
  if (hit + fetched > 0)
    $('experts').textContent = `${percent(hit / (hit + fetched))} hit, ${fetched} fetched`;
}

const percent = (share) => `${Math.round(100 * share)} %`;

async function listModels() {
  const { data } = await (await ask('v1/models')).json();
  for (const { id, chat } of data) hasChat.set(id, chat);
  $('model').replaceChildren(...data.map(({ id }) => new Option(id, id)));
}

/** Waits for a key where the server wants one. */
async function start() {
  try {
    await listModels();
    show();
    $('text').focus();
  } catch (error) {
    show(error.message);
    $('settings').open = true;
    $('key').focus();
  }
}

$('key').addEventListener('change', start);
await start();
setInterval(() => {
  if (!document.hidden) readStats().catch(() => undefined);
}, 1000);
