package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

const (
	mintRounds   = 300
	mintAccounts = 10 // each rests between two mints for longer than its history takes
	mintsASecond = 20
	attributions = 400
	accounts     = 1000
	listRounds   = 30
	pluginTenant = "tenant-acme-plugin"
	pluginRounds = 9
	pluginApps   = 50
	pluginUsers  = 100 // of each
	listTenant   = "tenant-acme-list"

	accountSecrets = "credentials.cozystack.io/account=true" // a label selector
)

// prepare starts a sandbox, unless that is done, and lays one application for mints, one for attributions, and one of a
// thousand accounts in a tenant of its own.
func (b *bencher) prepare(ctx context.Context) error {
	if b.prepared {
		return nil
	}
	if b.sandbox != nil {
		return errors.New("the sandbox could not be prepared before")
	}
	var err error
	if b.sandbox, err = sandbox.Start(ctx, sandbox.Options{Log: os.Stderr, Synced: true}); err != nil {
		return err
	}
	if _, err := b.sandbox.RunAll(ctx); err != nil {
		return err
	}
	config := b.sandbox.RESTConfig(sandbox.Jane, 0)
	b.host, b.admin = config.Host, b.sandbox.Kubernetes(sandbox.ClusterAdmin, 0)
	if b.client, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if err := b.sandbox.LayDefinition(ctx); err != nil {
		return err
	}
	if err := b.sandbox.AwaitFirstSight(ctx, "Postgres"); err != nil {
		return err
	}
	if err := b.sandbox.AddTenant(ctx, listTenant); err != nil {
		return err
	}
	if _, err := b.sandbox.InstallRelease(ctx, sandbox.TenantAcme, "Postgres", "mint", users(mintAccounts)); err != nil {
		return err
	}
	if _, err := b.sandbox.InstallRelease(ctx, sandbox.TenantAcme, "Postgres", "bench", users(attributions)); err != nil {
		return err
	}
	if _, err := b.sandbox.InstallRelease(ctx, listTenant, "Postgres", "bench", users(accounts)); err != nil {
		return err
	}
	if err := b.seeded(ctx, sandbox.TenantAcme, mintAccounts+attributions); err != nil {
		return err
	}
	if err := b.seeded(ctx, listTenant, accounts); err != nil {
		return err
	}
	b.prepared = true
	return nil
}

func users(count int) map[string]any {
	all := map[string]any{}
	for n := range count {
		all[fmt.Sprintf("u%d", n)] = map[string]any{}
	}
	return map[string]any{"users": all}
}

// seeded waits until an application's accounts are there and tells how far it is.
func (b *bencher) seeded(ctx context.Context, namespace string, count int) error {
	deadline := time.Now().Add(3*time.Minute + time.Duration(count)*200*time.Millisecond)
	for {
		secrets, err := b.admin.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{LabelSelector: accountSecrets})
		if err != nil {
			return err
		}
		if len(secrets.Items) >= count {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d accounts are seeded in %s", len(secrets.Items), count, namespace)
		}
		fmt.Fprintf(os.Stderr, "%d of %d accounts are seeded in %s\n", len(secrets.Items), count, namespace)
		time.Sleep(2 * time.Second)
	}
}

func (b *bencher) url(namespace, path string) string {
	return b.host + "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + namespace + "/credentials" + path
}

// mintOnce returns the id of the new entry.
func (b *bencher) mintOnce(ctx context.Context, credential string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url(sandbox.TenantAcme, "/"+credential+"/mint"), strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := b.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("a mint of %s was answered %s: %s", credential, response.Status, answer) // no 201: it holds no password
	}
	var body v1alpha1.CredentialMint
	if err := json.Unmarshal(answer, &body); err != nil {
		return "", errors.New("the answer of a mint cannot be read")
	}
	return body.Status.ID, nil
}

// mint compares a mint with the two calls that it cannot do without: a proof of identity, and one write of a Secret. It
// is measured where the mint server has asked of late whether the caller may, and where it asks for each mint: its
// answers are good for 10 s and one account, and few accounts are minted on twice in that time.
func (b *bencher) mint(ctx context.Context) ([]figure, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	admin := b.admin.CoreV1()
	secret, err := admin.Secrets(sandbox.TenantAcme).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-plain"}, Data: map[string][]byte{"password": make([]byte, 133)},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var minted, first, token, update []time.Duration
	timed := func(into *[]time.Duration, f func() error) error {
		start := time.Now()
		err := f()
		*into = append(*into, time.Since(start))
		return err
	}
	for n := range mintRounds {
		err := errors.Join(
			timed(&minted, func() error {
				_, err := b.mintOnce(ctx, fmt.Sprintf("postgres-mint.u%d", n%mintAccounts))
				return err
			}),
			timed(&first, func() error {
				_, err := b.mintOnce(ctx, fmt.Sprintf("postgres-bench.u%d", n))
				return err
			}),
			timed(&token, func() error {
				_, err := admin.ServiceAccounts(sandbox.TenantAcme).CreateToken(ctx, sandbox.TenantAcme, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
				return err
			}),
			timed(&update, func() error {
				secret.Data["password"][0] = byte(n)
				var err error
				secret, err = admin.Secrets(sandbox.TenantAcme).Update(ctx, secret, metav1.UpdateOptions{})
				return err
			}),
		)
		if err != nil {
			return nil, err
		}
	}
	beside := percentile(token, 50) + percentile(update, 50)
	row := func(where string, took []time.Duration) figure {
		return figure{
			what:     fmt.Sprintf("mint of a SCRAM account through kube-apiserver, %s, p50 of %d; beside TokenRequest plus Secret update", where, mintRounds),
			measured: ms(percentile(took, 50)), beside: fmt.Sprintf("%s + %s", ms(percentile(token, 50)), ms(percentile(update, 50))),
			ratio: fmt.Sprintf("%.2f", float64(percentile(took, 50))/float64(beside)), goal: "≤ 1.50",
		}
	}
	return []figure{
		row(fmt.Sprintf("%d accounts in turn", mintAccounts), minted),
		row(fmt.Sprintf("each on another of an application's %d", attributions), first),
	}, nil
}

// attribution measures from the mint's answer until the view, read through kube-apiserver, names who asked.
func (b *bencher) attribution(ctx context.Context) ([]figure, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	histories, err := b.watchHistories(ctx)
	if err != nil {
		return nil, err
	}
	var mutex sync.Mutex
	var took []time.Duration
	var failures error
	var waiting sync.WaitGroup
	ticker := time.NewTicker(time.Second / mintsASecond)
	defer ticker.Stop()
	for n := range attributions {
		<-ticker.C
		waiting.Go(func() {
			duration, err := b.attributed(ctx, histories, fmt.Sprintf("postgres-bench.u%d", n))
			mutex.Lock()
			defer mutex.Unlock()
			took, failures = append(took, duration), errors.Join(failures, err)
		})
	}
	waiting.Wait()
	if failures != nil {
		return nil, failures
	}
	what := fmt.Sprintf("from the mint's answer to the name in the view, %d mints at %d/s", attributions, mintsASecond)
	return []figure{
		{what: what + ", p50", measured: ms(percentile(took, 50)), beside: "-", ratio: "-", goal: "≤ 100 ms"},
		{what: what + ", p99", measured: ms(percentile(took, 99)), beside: "-", ratio: "-", goal: "≤ 500 ms"},
	}, nil
}

func (b *bencher) attributed(ctx context.Context, histories *written, credential string) (time.Duration, error) {
	id, err := b.mintOnce(ctx, credential)
	if err != nil {
		return 0, err
	}
	answered := time.Now()
	select {
	case <-histories.of(id):
	case <-ctx.Done():
		return 0, fmt.Errorf("a mint of %s was not attributed: %w", credential, ctx.Err())
	}
	for time.Since(answered) < 30*time.Second {
		var c v1alpha1.Credential
		body, err := b.get(ctx, b.url(sandbox.TenantAcme, "/"+credential))
		if err == nil {
			err = json.Unmarshal(body, &c)
		}
		if err != nil {
			return 0, err
		}
		for _, o := range c.Status.History {
			if o.ID == id && o.By != "" {
				return time.Since(answered), nil
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, fmt.Errorf("a mint of %s was not attributed within 30 s", credential)
}

// list compares the view of a thousand accounts with their Secrets as kube-apiserver serves them.
func (b *bencher) list(ctx context.Context) ([]figure, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	adminConfig := b.sandbox.RESTConfig(sandbox.ClusterAdmin, 0)
	admin, err := rest.HTTPClientFor(adminConfig)
	if err != nil {
		return nil, err
	}
	b = &bencher{client: admin, host: b.host}
	secrets := b.host + "/api/v1/namespaces/" + listTenant + "/secrets?labelSelector=credentials.cozystack.io/account%3Dtrue"
	var credentials, raw []time.Duration
	var sizes [2]int
	for range listRounds {
		for i, url := range []string{b.url(listTenant, ""), secrets} {
			start := time.Now()
			body, err := b.get(ctx, url)
			if err != nil {
				return nil, err
			}
			into := [2]*[]time.Duration{&credentials, &raw}[i]
			*into, sizes[i] = append(*into, time.Since(start)), len(body)
		}
	}
	return []figure{{
		what: fmt.Sprintf("list of %d credentials, p50 of %d (%d KiB); beside get --raw of the same Secrets (%d KiB)",
			accounts, listRounds, sizes[0]>>10, sizes[1]>>10),
		measured: ms(percentile(credentials, 50)), beside: ms(percentile(raw, 50)),
		ratio: fmt.Sprintf("%.2f", float64(percentile(credentials, 50))/float64(percentile(raw, 50))), goal: "≤ 1.00",
	}}, nil
}

// plugin compares the whole command with kubectl's, which asks for the same table in pages.
func (b *bencher) plugin(ctx context.Context) ([]figure, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.sandbox.AddTenant(ctx, pluginTenant); err != nil {
		return nil, err
	}
	for n := range pluginApps {
		if _, err := b.sandbox.InstallRelease(ctx, pluginTenant, "Postgres", fmt.Sprintf("plugin%d", n), users(pluginUsers)); err != nil {
			return nil, err
		}
	}
	if err := b.seeded(ctx, pluginTenant, pluginApps*pluginUsers); err != nil {
		return nil, err
	}
	commands := [2][]string{
		{b.bin("kubectl-credentials"), "list", "-n", pluginTenant},
		{b.bin("kubectl"), "get", "credentials", "-n", pluginTenant},
	}
	var took [2][]time.Duration
	for range pluginRounds {
		for i, arguments := range commands {
			command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
			command.Env = append(os.Environ(), "KUBECONFIG="+b.sandbox.Kubeconfig(sandbox.ClusterAdmin, 0))
			var out, failure bytes.Buffer
			command.Stdout, command.Stderr = &out, &failure
			start := time.Now()
			if err := command.Run(); err != nil {
				return nil, fmt.Errorf("%s: %w: %s", strings.Join(arguments, " "), err, &failure)
			}
			took[i] = append(took[i], time.Since(start))
			if lines := bytes.Count(out.Bytes(), []byte{'\n'}); lines != 1+pluginApps*pluginUsers {
				return nil, fmt.Errorf("%s prints %d lines", strings.Join(arguments, " "), lines)
			}
		}
	}
	return []figure{{
		what:     fmt.Sprintf("kubectl credentials list of %d, p50 of %d; beside kubectl get", pluginApps*pluginUsers, pluginRounds),
		measured: ms(percentile(took[0], 50)), beside: ms(percentile(took[1], 50)),
		ratio: ratio(float64(percentile(took[0], 50)), float64(percentile(took[1], 50))), goal: "≤ 2.00",
	}}, nil
}

func (b *bencher) get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s was answered %s", url, response.Status)
	}
	return body, err
}
