// Converts (built output, as users run it), and is killed once the journal vouches for something written behind a share
// of the output. Arguments: the request as JSON, and the share.
import { convert } from '@cflow/convert';
import { Journal } from '../dist/resume/journal.js';

const [request, share] = process.argv.slice(2);
let behind = Number(share) === 0;
// Time stands still before the share, and flies behind it: what is written is secured as time passes.
let time = 0;
performance.now = () => {
  if (behind) time += 1000;
  return time;
};
const secure = Journal.prototype.secure;
Journal.prototype.secure = async function (sums) {
  await secure.call(this, sums);
  process.kill(process.pid, 'SIGKILL');
};
await convert({
  ...JSON.parse(request),
  onProgress: (done, total) => {
    behind ||= done >= Number(share) * total;
  },
});
