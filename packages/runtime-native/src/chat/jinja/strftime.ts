/** Python's `strftime` in the C locale. */
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  ...['January', 'February', 'March', 'April', 'May', 'June'],
  ...['July', 'August', 'September', 'October', 'November', 'December'],
];

const two = (value: number) => String(value).padStart(2, '0');
const dayOfYear = (date: Date) =>
  Math.round(
    (Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) - Date.UTC(date.getFullYear(), 0, 0)) /
      864e5,
  );
const hour12 = (date: Date) => date.getHours() % 12 || 12;

function zone(date: Date): string {
  const minutes = Math.abs(date.getTimezoneOffset());
  return `${date.getTimezoneOffset() > 0 ? '-' : '+'}${two(Math.floor(minutes / 60))}${two(minutes % 60)}`;
}

const DIRECTIVES: Readonly<Record<string, (date: Date) => string>> = {
  a: (date) => DAYS[date.getDay()]!.slice(0, 3),
  A: (date) => DAYS[date.getDay()]!,
  b: (date) => MONTHS[date.getMonth()]!.slice(0, 3),
  B: (date) => MONTHS[date.getMonth()]!,
  c: (date) => strftime(date, '%a %b %e %H:%M:%S %Y'),
  d: (date) => two(date.getDate()),
  D: (date) => strftime(date, '%m/%d/%y'),
  e: (date) => String(date.getDate()).padStart(2),
  f: (date) => String(date.getMilliseconds() * 1000).padStart(6, '0'),
  F: (date) => strftime(date, '%Y-%m-%d'),
  h: (date) => MONTHS[date.getMonth()]!.slice(0, 3),
  H: (date) => two(date.getHours()),
  I: (date) => two(hour12(date)),
  j: (date) => String(dayOfYear(date)).padStart(3, '0'),
  m: (date) => two(date.getMonth() + 1),
  M: (date) => two(date.getMinutes()),
  n: () => '\n',
  p: (date) => (date.getHours() < 12 ? 'AM' : 'PM'),
  R: (date) => strftime(date, '%H:%M'),
  s: (date) => String(Math.floor(date.getTime() / 1000)),
  S: (date) => two(date.getSeconds()),
  t: () => '\t',
  T: (date) => strftime(date, '%H:%M:%S'),
  u: (date) => String(date.getDay() || 7),
  U: (date) => two(Math.floor((dayOfYear(date) + 6 - date.getDay()) / 7)),
  w: (date) => String(date.getDay()),
  W: (date) => two(Math.floor((dayOfYear(date) + 6 - ((date.getDay() + 6) % 7)) / 7)),
  x: (date) => strftime(date, '%m/%d/%y'),
  X: (date) => strftime(date, '%H:%M:%S'),
  y: (date) => two(date.getFullYear() % 100),
  Y: (date) => String(date.getFullYear()),
  z: zone,
  Z: (date) => (date.getTimezoneOffset() === 0 ? 'UTC' : zone(date)),
  '%': () => '%',
};

/** `date` in local time; `%-d` leaves padding out, as glibc does. */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)([A-Za-z%])/g, (all, bare: string, letter: string) => {
    const text = Object.hasOwn(DIRECTIVES, letter) ? DIRECTIVES[letter]!(date) : all;
    return bare ? text.replace(/^[0 ]+(?=.)/, '') : text;
  });
}
